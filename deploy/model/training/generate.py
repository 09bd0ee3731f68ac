"""Greedy decoding with the training model, many prompts at once: enough to evaluate a small model on a CPU."""

import torch

import model as training_model


class _Cache:
    """Attention that keeps the keys and values of earlier tokens, layer after layer."""

    def __init__(self, layers):
        self.keys, self.values, self.layer, self.layers = [None] * layers, [None] * layers, 0, layers

    def attend(self, q, k, v, mask):
        n = self.layer
        self.layer = (n + 1) % self.layers
        if self.keys[n] is not None:
            k, v = torch.cat((self.keys[n], k), 2), torch.cat((self.values[n], v), 2)
        self.keys[n], self.values[n] = k, v
        return training_model.PlainAttention.attend(q, k, v, mask)


@torch.no_grad()
def greedy(model, prompts, ends, limit=96):
    """prompts: lists of token ids. Returns the generated ids of each, without the end token."""
    longest = max(map(len, prompts))
    shift = torch.tensor([longest - len(p) for p in prompts])  # prompts are padded on the left
    tokens = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    index = torch.arange(longest)
    positions = (index - shift.unsqueeze(1)).clamp(min=0)
    seen = (index >= shift.unsqueeze(1)).view(len(prompts), 1, 1, longest)
    mask = seen & (index <= index.unsqueeze(1)) | torch.eye(longest, dtype=torch.bool)
    cache = _Cache(model.shape.layers)
    out, done = [[] for _ in prompts], [False] * len(prompts)
    for step in range(limit):
        x = model.hidden(tokens, positions, cache.attend, mask, None)[0][:, -1]
        best = training_model.product(x, model.embed).argmax(-1)
        for row, token in enumerate(best.tolist()):
            done[row] = done[row] or token in ends
            if not done[row]:
                out[row].append(token)
        if all(done):
            break
        tokens, positions = best.unsqueeze(1), (longest + step - shift).unsqueeze(1)
        seen = torch.cat((seen, torch.ones(len(prompts), 1, 1, 1, dtype=torch.bool)), -1)
        mask = seen
    return out


@torch.no_grad()
def follows_greedily(model, prompts, answers, batch=25):
    """How many tokens of each answer greedy decoding would give before the first that differs.

    Equal to decoding and comparing, but all positions are computed at once.
    """
    out = []
    for at in range(0, len(prompts), batch):
        whole = [p + a for p, a in zip(prompts[at : at + batch], answers[at : at + batch])]
        longest = max(map(len, whole))
        tokens = torch.tensor([w + [0] * (longest - len(w)) for w in whole])
        mask = training_model.PlainAttention.mask_of(torch.zeros_like(tokens))
        positions = torch.arange(longest).expand_as(tokens)
        x = model.hidden(tokens, positions, training_model.PlainAttention.attend, mask, None)[0]
        for row, (prompt, answer) in enumerate(zip(prompts[at : at + batch], answers[at : at + batch])):
            first = len(prompt) - 1
            best = training_model.product(x[row, first : first + len(answer)], model.embed).argmax(-1).tolist()
            same = [b == a for b, a in zip(best, answer)]
            out.append(same.index(False) if False in same else len(answer))
    return out

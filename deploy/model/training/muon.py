"""Muon: momentum, orthogonalised by a Newton-Schulz iteration (Keller Jordan, 2024), for all matrices at once.

Updates are scaled by 0.2 * sqrt(max(out, in)), which gives them the size of AdamW's (Liu et al., "Muon is scalable
for LLM training", 2025). Every projection of every expert is a matrix of its own; equal shapes go in one batch.
"""

import collections

import torch


def orthogonalise(x):
    """x: [batch, out, in], out <= in. Five steps of the quintic iteration, in BF16."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = x.to(torch.bfloat16)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.float()


class Muon:
    """matrices: parameters of `model` by name."""

    def __init__(self, model, matrices, weight_decay, momentum=0.95, compiled=False):
        self.weight_decay, self.momentum = weight_decay, momentum
        self.parameters = list(matrices.values())
        self.buffers = [torch.zeros_like(p) for p in self.parameters]
        shape = model.shape
        self.rows = [  # how a parameter's rows split into matrices
            [shape.heads * shape.head_dim] + 2 * [shape.kv_heads * shape.head_dim] if name.endswith("qkv") else None
            for name in matrices]
        self.orthogonalise = torch.compile(orthogonalise) if compiled else orthogonalise

    def _matrices(self, tensor, rows):
        """The matrices of one parameter (views), flattened to [batch, out, in]."""
        return [m.unsqueeze(0) for m in tensor.split(rows)] if rows else [tensor.reshape(-1, *tensor.shape[-2:])]

    @torch.no_grad()
    def step(self, rate):
        gradients = [p.grad for p in self.parameters]
        torch._foreach_mul_(self.buffers, self.momentum)
        torch._foreach_add_(self.buffers, gradients)
        nesterov = torch._foreach_add(gradients, self.buffers, alpha=self.momentum)
        torch._foreach_mul_(self.parameters, 1 - rate * self.weight_decay)

        groups = collections.defaultdict(list)  # (small side, large side) -> (matrices, their weights, transposed)
        for parameter, update, rows in zip(self.parameters, nesterov, self.rows):
            for u, w in zip(self._matrices(update, rows), self._matrices(parameter, rows)):
                tall = u.shape[-2] > u.shape[-1]
                groups[tuple(sorted(u.shape[-2:]))].append((u.mT if tall else u, w, tall))
        for (_, large), members in groups.items():
            result = self.orthogonalise(torch.cat([u for u, _, _ in members]))
            pieces = result.split([len(u) for u, _, _ in members])
            weights = [w for _, w, _ in members]
            torch._foreach_add_(weights, [p.mT if tall else p for p, (_, _, tall) in zip(pieces, members)],
                                alpha=-rate * 0.2 * large**0.5)

"""Measures a BF16 checkpoint and the NVFP4 checkpoint made from it.

    python3 evaluate.py --work DIR --bf16 BF16_DIR --nvfp4 NVFP4_DIR --out OUT

Perplexity on text that was held out, the share of words whose definition comes out exactly as in WordNet, sample
generations, and whether embeddings of synonyms are closer than those of random pairs. Runs on a CPU in minutes.
Both checkpoints run in the same torch code (matrix inputs rounded to BF16, weights exact, float32 sums).
Writes OUT/evaluation.json and OUT/samples.md.
"""

import argparse
import json
import math
import pathlib

import safetensors.torch
import tokenizers
import torch

import config
import generate
import model as training_model

PLAIN = ["Define: lantern", "Define: lighthouse", "Define: abandon", "Define: happy", "Define: quickly",
         "Synonyms: car", "Opposite: hot", "Kind: violin", "Word for: a person who makes bread and cakes",
         "Sentence: discover", "Define: axolotl", "In the beginning", "And it came to pass, that",
         "The SELECT statement", "This function returns"]
CHAT = ["What does lantern mean?", "What is a volcano?", "Give me a synonym for brave.", "What is the opposite of big?",
        "Use abandon in a sentence.", "What kind of thing is an oak?", "Who are you?", "Hello!",
        "What is the capital of France?"]
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def load(folder):
    """A Hugging Face checkpoint as the training model, NVFP4 weights dequantised to float32."""
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors.update(safetensors.torch.load_file(path))

    def weight(name):
        w = tensors[name]
        if w.dtype != torch.uint8:
            return w.float()
        code = torch.stack((w & 15, w >> 4), -1).flatten(-2).long()
        step = tensors[name + "_scale"].float() * tensors[name + "_scale_2"]
        return (E2M1[code].unflatten(-1, (-1, 16)) * step.unsqueeze(-1)).flatten(-2)

    c = json.loads((folder / "config.json").read_text())
    shape = config.Shape(c["vocab_size"], c["hidden_size"], c["num_hidden_layers"], c["num_attention_heads"],
                         c["num_key_value_heads"], c["head_dim"], c["num_experts"], c["num_experts_per_tok"],
                         c["moe_intermediate_size"], c["max_position_embeddings"], c["rope_theta"], c["rms_norm_eps"])
    state = {"embed": weight("model.embed_tokens.weight"), "norm": weight("model.norm.weight")}
    for n in range(shape.layers):
        source, target = f"model.layers.{n}.", f"layers.{n}."
        state[target + "attention_norm"] = weight(source + "input_layernorm.weight")
        state[target + "mlp_norm"] = weight(source + "post_attention_layernorm.weight")
        state[target + "attention.qkv"] = torch.cat([weight(f"{source}self_attn.{x}_proj.weight") for x in "qkv"])
        state[target + "attention.o"] = weight(source + "self_attn.o_proj.weight")
        for x in "qk":
            state[target + f"attention.{x}_norm"] = weight(f"{source}self_attn.{x}_norm.weight")
        state[target + "mlp.router"] = weight(source + "mlp.gate.weight")
        experts = [f"{source}mlp.experts.{e}." for e in range(shape.experts)]
        state[target + "mlp.gate_up"] = torch.stack(
            [torch.stack((weight(e + "gate_proj.weight"), weight(e + "up_proj.weight"))) for e in experts])
        state[target + "mlp.down"] = torch.stack([weight(e + "down_proj.weight") for e in experts])
    model = training_model.Model(shape)
    model.load_state_dict(state)
    return model


@torch.no_grad()
def perplexity(model, documents):
    """documents: (token ids, which of them count). Perplexity of those that count."""
    total = count = 0.0
    for ids, learn in documents:
        tokens = torch.tensor(ids).unsqueeze(0)
        mask = training_model.PlainAttention.mask_of(torch.zeros_like(tokens))
        positions = torch.arange(len(ids)).unsqueeze(0)
        x = model.hidden(tokens, positions, training_model.PlainAttention.attend, mask, None)[0]
        weights = torch.tensor(learn[1:], dtype=torch.float32)
        loss, _, n = training_model.head_loss(x[0, :-1], model.embed, tokens[0, 1:], weights)
        total, count = total + loss.item(), count + n.item()
    return math.exp(total / count)


def documents_of(path, tokenizer, keep=lambda record: True, limit=None):
    found = []
    for line in open(path, encoding="utf-8"):
        record = json.loads(line)
        if not keep(record):
            continue
        ids, learn = [], []
        for text, flag in record["parts"]:
            piece = tokenizer.encode(text).ids
            ids += piece
            learn += [flag] * len(piece)
        found.append((ids[:2048], learn[:2048]))
        if limit and len(found) == limit:
            break
    return found


def chat_prompt(question):
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def exactness(model, tokenizer, tier, form, entries):
    """The share of words whose first definition, and whose whole answer, greedy decoding gives letter by letter."""
    encode = lambda text: tokenizer.encode(text).ids
    if form == "plain":
        prompts = [encode(f"Define: {e['word']}") for e in entries]
        answers = [encode("\n" + e["plain"]) + [tokenizer.token_to_id("<|endoftext|>")] for e in entries]
    else:
        prompts = [encode(chat_prompt(f"What does {e['word']} mean?")) for e in entries]
        answers = [encode(e["chat"]) + [tokenizer.token_to_id("<|im_end|>")] for e in entries]
    right = generate.follows_greedily(model, prompts, answers)
    first = 0
    for e, answer, n in zip(entries, answers, right):
        text = tokenizer.decode(answer[:n])
        first += n == len(answer) or e["gloss"] + "." in text
    return {f"{tier}, {form}: the first definition is exact": first / len(entries),
            f"{tier}, {form}: the whole answer is exact":
                sum(n == len(a) for a, n in zip(answers, right)) / len(entries)}


@torch.no_grad()
def embeddings(model, tokenizer, words, pooling):
    out = []
    for word in words:
        tokens = torch.tensor([tokenizer.encode(word).ids])
        mask = training_model.PlainAttention.mask_of(torch.zeros_like(tokens))
        x = model.hidden(tokens, torch.arange(tokens.shape[1]).unsqueeze(0), training_model.PlainAttention.attend,
                         mask, None)[0][0]
        out.append(torch.nn.functional.normalize(x.mean(0) if pooling == "mean" else x[-1], dim=0))
    return torch.stack(out)


def similarity(model, tokenizer, pairs, template, pooling):
    """How synonyms compare with random pairs: mean cosines, and how often the synonym is the closer one."""
    a = embeddings(model, tokenizer, [template.format(w) for w, _ in pairs], pooling)
    b = embeddings(model, tokenizer, [template.format(w) for _, w in pairs], pooling)
    cosines = a @ b.T
    same = cosines.diagonal()
    other = (cosines.sum(1) - same) / (len(pairs) - 1)
    wins = (same.unsqueeze(1) > cosines).float().sum(1) / (len(pairs) - 1)
    return {"synonyms": same.mean().item(), "random_pairs": other.mean().item(), "synonym_closer": wins.mean().item()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--bf16", type=pathlib.Path, required=True)
    parser.add_argument("--nvfp4", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    training_model.numerics = training_model.SERVING
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizers.Tokenizer.from_file(str(args.nvfp4 / "tokenizer.json"))
    ends = {tokenizer.token_to_id("<|endoftext|>"), tokenizer.token_to_id("<|im_end|>")}
    words = json.loads((args.work / "common_words.json").read_text())
    held_text = args.work / "heldout_text.jsonl"
    sources = {f"held-out text, {s}": documents_of(held_text, tokenizer, lambda r, s=s: r["source"] == s)
               for s in ("kjv", "postgresql", "python")}
    sources["held-out text, all"] = sum(sources.values(), [])
    sources["definitions of held-out words"] = documents_of(args.work / "heldout_gloss.jsonl", tokenizer, limit=300)
    sources["definitions that were trained on"] = documents_of(
        args.work / "train.jsonl", tokenizer, lambda r: r["parts"][0][0].startswith("Define: "), limit=300)

    report, samples = {}, {}
    for label, folder in (("bf16", args.bf16), ("nvfp4", args.nvfp4)):
        model = load(folder)
        result = {"perplexity": {name: perplexity(model, documents) for name, documents in sources.items()}}
        print(label, json.dumps(result, indent=1), flush=True)
        for tier in ("common", "familiar"):
            entries = words[tier]
            for form in ("plain", "chat"):
                result.update(exactness(model, tokenizer, tier, form, entries))
                print(list(result.items())[-2:], flush=True)
        prompts = PLAIN + [chat_prompt(q) for q in CHAT]
        samples[label] = [tokenizer.decode(ids).strip("\n") for ids in generate.greedy(
            model, [tokenizer.encode(p).ids for p in prompts], ends, limit=60)]
        for template, name in (("{}", "the word"), ("Define: {}", "Define: the word")):
            for pooling in ("mean", "last"):
                result[f"embedding of '{name}', {pooling}"] = similarity(
                    model, tokenizer, words["synonym_pairs"][:300], template, pooling)
        report[label] = result
        print(json.dumps(result, indent=1), flush=True)
    report["samples_equal"] = sum(a == b for a, b in zip(samples["bf16"], samples["nvfp4"]))
    report["samples"] = len(samples["bf16"])
    (args.out / "evaluation.json").write_text(json.dumps(report, indent=1) + "\n")

    cell = lambda text: text.replace("|", "\\|").replace("\n", "<br>")
    lines = ["| prompt | BF16 | NVFP4 |", "|---|---|---|"]
    for prompt, a, b in zip(PLAIN + [f"(chat) {q}" for q in CHAT], samples["bf16"], samples["nvfp4"]):
        lines.append(f"| {cell(prompt)} | {cell(a)} | {'the same' if a == b else cell(b)} |")
    (args.out / "samples.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Log-probabilities of a text's tokens under the bundled model, by transformers: the reference of `tessera eval`.

    python3 make_perplexity.py        # writes bundled.json beside this file

Needs what ../model/make_golden.py needs. The text is cut into windows that do not overlap; the first token of a window
has no log-probability.
"""
import json
import pathlib
import sys

import torch
from tokenizers import Tokenizer
from transformers.models.qwen3_moe import modeling_qwen3_moe

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "model"))
import reference_model  # noqa: E402

CONTEXT = 32
TEXT = ("A lantern is a light in a transparent protective case. In the beginning God created the heaven and the earth; "
        "and the earth was without form, and void. The function returns the number of rows in the table. Dogs and cats "
        "are domestic animals, and a bridge is a structure that allows people or vehicles to cross an obstacle.\n")


@torch.no_grad()
def main():
    folder = HERE.parent.parent.parent / "deploy" / "model"
    tokens = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT, add_special_tokens=False).ids
    scored, logprobs = [], []
    for first in range(0, len(tokens), CONTEXT):
        window = tokens[first:first + CONTEXT]
        if len(window) < 2:
            continue
        logits = reference_model.compute(modeling_qwen3_moe, folder, window)[0]["logits"].double()
        table = torch.log_softmax(logits, -1)
        for i, token in enumerate(window[1:]):
            scored.append(token)
            logprobs.append(table[i, token].item())
    out = HERE / "bundled.json"
    out.write_text(json.dumps({"text": TEXT, "context": CONTEXT, "tokens": scored,
                               "logprobs": [round(value, 6) for value in logprobs]}) + "\n")
    print(f"{out}: {len(tokens)} tokens, perplexity {torch.tensor(logprobs).double().mean().neg().exp().item():.4f}")


if __name__ == "__main__":
    main()

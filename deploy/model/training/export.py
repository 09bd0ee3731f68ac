"""Writes a training checkpoint as a Hugging Face Qwen3-MoE checkpoint in BF16.

    python3 export.py --checkpoint 'OUT/weights-*.safetensors' --tokenizer TOKENIZER_DIR --out MODEL_DIR [--check]

--check loads the result in transformers and compares its logits with the training model's.
"""

import argparse
import glob
import json
import pathlib
import shutil

import safetensors.torch
import torch

import config
import model as training_model


def write(tensors, shape, tokenizer, out):
    out.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(shape.hf_config(), indent=2) + "\n")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if (tokenizer / name).resolve() != (out / name).resolve():
            shutil.copy(tokenizer / name, out / name)


@torch.no_grad()
def check(model, out):
    """How far the logits are from those of transformers, both in float32 arithmetic with the BF16 weights."""
    import transformers
    reference = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    exact = training_model.Model(model.shape)
    exact.load_state_dict({k: v.to(torch.bfloat16).float() for k, v in model.state_dict().items()})
    training_model.numerics = training_model.EXACT
    tokens = torch.randint(0, model.shape.vocab, (2, 96), generator=torch.Generator().manual_seed(0))
    positions = torch.arange(96).expand(2, 96)
    plain = training_model.PlainAttention
    mask = plain.mask_of(torch.zeros_like(tokens))
    mine = exact.hidden(tokens, positions, plain.attend, mask, None)[0] @ exact.embed.T
    theirs = reference(tokens).logits
    training_model.numerics = training_model.TRAINING
    return ((mine - theirs).norm() / theirs.norm()).item()


def load(pattern):
    """The full state dictionary from the parts that train.py wrote (shape in the metadata of each part)."""
    state, shape = {}, None
    for path in sorted(glob.glob(pattern)):
        with safetensors.safe_open(path, "pt") as f:
            shape = config.Shape(**json.loads(f.metadata()["shape"]))
            state.update({k: f.get_tensor(k) for k in f.keys()})
    model = training_model.Model(shape)
    model.load_state_dict({k: v.float() for k, v in state.items()})
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    model = load(args.checkpoint)
    write(training_model.hf_tensors(model), model.shape, args.tokenizer, args.out)
    print(f"{sum(p.numel() for p in model.parameters())} parameters")
    if args.check:
        print(f"relative difference of logits against transformers: {check(model, args.out):.2e}")


if __name__ == "__main__":
    main()

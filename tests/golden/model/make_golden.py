"""Makes tiny random Qwen3-MoE checkpoints and the logits that transformers computes for them.

    python3 make_golden.py tiny             # checkpoints and logits beside this script
    python3 make_golden.py bundled DIR      # logits of the model in DIR, into bundled.safetensors
    python3 make_golden.py rope             # inverse frequencies of the rope scalings, into rope.json

Needs torch, transformers and safetensors. Two kinds of logits are kept:

  logits       with the rounding points of Tessera (reference_model.py). What is left between the two is float32
               accumulation (and, rarely, a value on the other side of a rounding boundary because of it).
  logits_fp32  the same weights in plain float32, untouched: for the record, how far the BF16 roundings move the result.

NVFP4 checkpoints are quantised by ../quantize_reference.py, and transformers gets the dequantised weights.
"""

import argparse
import json
import pathlib
import shutil
import sys

import numpy as np
import safetensors.torch
import torch
import transformers
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.models.qwen3_moe import modeling_qwen3_moe as modeling

from reference_model import HERE, TOKENS, Patched, load, reference
import reference_model

# The router logits of the last expert kept and the best one left out must differ by this much, or rounding could choose.
ROUTER_MARGIN = 2e-3

TINY = {
    # head_dim is not hidden / heads; sizes that are no multiple of 64, nor of 16 in the vocabulary; GQA of 2.
    "moe": dict(vocab_size=97, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                head_dim=32, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=True,
                intermediate_size=64, rope_theta=1e6),
    # Dense layers both ways (0 by the list, 2 by the step), one KV head, no renormalisation, tied output matrix.
    "mixed": dict(vocab_size=112, hidden_size=64, num_hidden_layers=4, num_attention_heads=3, num_key_value_heads=1,
                  head_dim=16, num_experts=4, num_experts_per_tok=3, moe_intermediate_size=48, norm_topk_prob=False,
                  intermediate_size=80, mlp_only_layers=[1], decoder_sparse_step=2, tie_word_embeddings=True),
    # Biases, YaRN, a sliding window, as many KV heads as query heads; two shards.
    "bias": dict(vocab_size=128, hidden_size=32, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2,
                 head_dim=64, num_experts=3, num_experts_per_tok=1, moe_intermediate_size=16, norm_topk_prob=True,
                 intermediate_size=48, decoder_sparse_step=2, attention_bias=True, use_sliding_window=True,
                 sliding_window=20,
                 rope_parameters=dict(rope_type="yarn", rope_theta=1e4, factor=4.0,
                                      original_max_position_embeddings=64)),
}


def make_tiny(name, sizes, seed):
    torch.manual_seed(seed)
    sizes = dict(sizes)
    if "rope_theta" in sizes:
        sizes["rope_parameters"] = dict(rope_type="default", rope_theta=sizes.pop("rope_theta"))
    sizes.setdefault("rope_parameters", dict(rope_type="default", rope_theta=1e4))
    config = Qwen3MoeConfig(max_position_embeddings=256, eos_token_id=1, bos_token_id=0, **sizes)
    model = Qwen3MoeForCausalLM(config)
    for parameter_name, parameter in model.named_parameters():
        if "norm" in parameter_name:
            parameter.data.uniform_(0.5, 1.5)
        elif parameter_name.endswith("bias"):
            parameter.data.normal_(0, 0.3)
        elif "embed" in parameter_name:
            parameter.data.normal_(0, 1.0)
        elif "mlp.gate.weight" in parameter_name:
            parameter.data.normal_(0, 1.0 / parameter.shape[-1] ** 0.5)
        else:
            parameter.data.normal_(0, 1.3 / parameter.shape[-1] ** 0.5)
    target = HERE / f"{name}_bf16"
    shutil.rmtree(target, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(target, max_shard_size="50KB" if name == "bias" else "1GB")
    (target / "generation_config.json").unlink(missing_ok=True)
    tokens = np.random.default_rng(seed).integers(0, config.vocab_size, TOKENS).tolist()
    result, margin = reference_model.compute(modeling, target, tokens)
    if margin < ROUTER_MARGIN:
        return False

    quantized = HERE / f"{name}_nvfp4"
    shutil.rmtree(quantized, ignore_errors=True)
    argv, sys.argv = sys.argv, ["", str(target), str(quantized)]
    reference.main()
    sys.argv = argv
    quantized_result, quantized_margin = reference_model.compute(modeling, quantized, tokens)
    if min(margin, quantized_margin) < ROUTER_MARGIN:
        return False
    for folder, tensors in ((target, result), (quantized, quantized_result)):
        safetensors.torch.save_file(tensors, folder / "golden.safetensors")
        difference = (tensors["logits"] - tensors["logits_fp32"]).abs().max().item()
        print(f"{folder.name}: logits up to {tensors['logits'].abs().max():.2f}, BF16 roundings move them by up to "
              f"{difference:.3f}")
    print(f"{name}: seed {seed}, smallest router margin {min(margin, quantized_margin):.1e}")
    return True


def bundled(folder):
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = ("In the beginning God created the heaven and the earth. A lantern is a light with a transparent protective "
            "case. The function returns the number of rows in the table, or NULL if there are none. ") * 3
    tokens = tokenizer.encode(text, add_special_tokens=False).ids[:100]
    result, _ = reference_model.compute(modeling, folder, tokens)
    positions = [0, 1, 63, len(tokens) - 1]  # a few, whole; the 8 best of every position
    best = result["logits"].topk(8, -1)
    prompt = tokenizer.encode("<|im_start|>user\nDefine: lantern<|im_end|>\n<|im_start|>assistant\n",
                              add_special_tokens=False).ids
    greedy, gaps = greedy_continuation(folder, prompt, 24)
    difference = result["logits"] - result["logits_fp32"]
    effect = [difference.abs().max().item(), difference.pow(2).mean().sqrt().item()]
    print(f"bundled: logits up to {result['logits'].abs().max():.2f}, BF16 roundings move them by up to "
          f"{effect[0]:.3f}; greedy {tokenizer.decode(greedy)!r}, smallest lead {min(gaps):.3f}")
    tensors = reference.load_tensors(folder)
    scales = [tensors[name].reshape(1) for name in sorted(tensors) if name.endswith("weight_scale_2")]
    safetensors.torch.save_file({
        "fingerprint": torch.cat(scales), "tokens": result["tokens"],
        "positions": torch.tensor(positions, dtype=torch.int32), "logits": result["logits"][positions].contiguous(),
        "rounding_effect": torch.tensor(effect),  # largest and root mean square, over all positions
        "top_ids": best.indices.int(), "top_logits": best.values, "prompt": torch.tensor(prompt, dtype=torch.int32),
        "greedy": torch.tensor(greedy, dtype=torch.int32), "greedy_leads": torch.tensor(gaps, dtype=torch.float32)},
        HERE / "bundled.safetensors", metadata={"text": text, "greedy_text": tokenizer.decode(greedy)})


@torch.no_grad()
def greedy_continuation(folder, prompt, steps):
    """The tokens with the largest logits, and how far each is ahead of the next."""
    model = load(folder, torch.float64)
    tokens, gaps = list(prompt), []
    with Patched(modeling, model):
        for _ in range(steps):
            best = model(torch.tensor([tokens])).logits[0, -1].topk(2)
            tokens.append(best.indices[0].item())
            gaps.append((best.values[0] - best.values[1]).item())
    return tokens[len(prompt):], gaps


def rope():
    cases = []
    for parameters in (dict(rope_type="default", rope_theta=1e6), dict(rope_type="linear", rope_theta=1e4, factor=8.0),
                       dict(rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                            original_max_position_embeddings=8192),
                       dict(rope_type="yarn", rope_theta=1e6, factor=4.0, original_max_position_embeddings=32768),
                       dict(rope_type="yarn", rope_theta=15e4, factor=32.0, original_max_position_embeddings=4096,
                            beta_fast=32.0, beta_slow=1.0, truncate=False),
                       dict(rope_type="yarn", rope_theta=1e4, factor=40.0, original_max_position_embeddings=4096,
                            mscale=1.0, mscale_all_dim=0.8)):
        config = Qwen3MoeConfig(hidden_size=64, num_attention_heads=2, num_key_value_heads=1, head_dim=128,
                                max_position_embeddings=131072, rope_parameters=dict(parameters))
        embedding = modeling.Qwen3MoeRotaryEmbedding(config)
        cases.append(dict(rope_parameters=parameters, inv_freq=embedding.inv_freq.tolist(),
                          attention_scaling=embedding.attention_scaling))
    (HERE / "rope.json").write_text(json.dumps(cases))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["tiny", "bundled", "rope"])
    parser.add_argument("folder", nargs="?", type=pathlib.Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if args.what == "tiny":
        for name, sizes in TINY.items():
            next(seed for seed in range(40) if make_tiny(name, sizes, seed))
    elif args.what == "bundled":
        bundled(args.folder)
    else:
        rope()


if __name__ == "__main__":
    main()

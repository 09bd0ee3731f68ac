"""Makes tiny random Qwen3-MoE checkpoints and the logits that transformers computes for them.

    python3 make_golden.py tiny             # checkpoints and logits beside this script
    python3 make_golden.py bundled DIR      # logits of the model in DIR, into bundled.safetensors
    python3 make_golden.py rope             # inverse frequencies of the rope scalings, into rope.json

Needs torch, transformers and safetensors. Two kinds of logits are kept:

  logits       transformers' modelling code in float64, with the tensors that Tessera rounds to BF16 rounded to BF16 here
               too: the input of every matrix product, queries, keys and values. What is left between the two is
               float32 accumulation (and, rarely, a value on the other side of a rounding boundary because of it).
  logits_fp32  the same weights in plain float32, untouched: for the record, how far the BF16 roundings move the result.

NVFP4 checkpoints are quantised by ../quantize_reference.py, and transformers gets the dequantised weights.
"""

import argparse
import json
import pathlib
import shutil
import sys
import tempfile

import numpy as np
import safetensors.torch
import torch
import transformers
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.models.qwen3_moe import modeling_qwen3_moe as modeling

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import quantize_reference as reference  # noqa: E402

TOKENS = 75  # past a tile of 64 keys and several blocks of 16
# The router logits of the last expert kept and the best one left out must differ by this much, or rounding could choose.
ROUTER_MARGIN = 2e-3
# Seeds are chosen so that the same rounding points in float32 give the same logits to 1e-6 of their size at the first
# positions: no value there sits so close to a rounding boundary that accumulation order would push it across.
STRICT = 24


def bf16(x):
    return x.to(torch.bfloat16).to(x.dtype)


def rms_norm(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


def rotary(self, x, position_ids):
    # inv_freq again in double: the buffer is float32.
    if self.rope_type == "default":
        dim = 2 * self.inv_freq.shape[0]
        base = self.config.rope_parameters["rope_theta"]
        inv_freq = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    else:
        inv_freq = self.inv_freq.double()
    angles = position_ids[..., None].double() * inv_freq
    angles = torch.cat((angles, angles), -1)
    return (angles.cos() * self.attention_scaling).to(x.dtype), (angles.sin() * self.attention_scaling).to(x.dtype)


def attention(module, query, key, value, mask, scaling, **kwargs):
    query, key, value = bf16(query), bf16(key), bf16(value)
    key = modeling.repeat_kv(key, module.num_key_value_groups)
    value = modeling.repeat_kv(value, module.num_key_value_groups)
    scores = query @ key.transpose(2, 3) * scaling
    length = scores.shape[-1]
    distance = torch.arange(length)[:, None] - torch.arange(length)[None, :]
    visible = distance >= 0
    if module.sliding_window is not None:
        visible &= distance < module.sliding_window
    probabilities = torch.softmax(scores.masked_fill(~visible, float("-inf")), -1)
    return (probabilities @ value).transpose(1, 2).contiguous(), probabilities


def router(self, x):
    x = bf16(x.reshape(-1, self.hidden_dim))
    logits = torch.nn.functional.linear(x, self.weight)
    probabilities = torch.softmax(logits, -1)
    best = logits.topk(min(self.top_k + 1, self.num_experts), -1).values
    if best.shape[-1] > self.top_k:
        router.margin = min(router.margin, (best[:, -2] - best[:, -1]).min().item())
    value, index = probabilities.topk(self.top_k, -1)
    if self.norm_topk_prob:
        value = value / value.sum(-1, keepdim=True)
    return probabilities, value, index


def experts(self, x, index, weight):
    x = bf16(x)
    out = torch.zeros_like(x)
    for token in range(x.shape[0]):
        for expert, scale in zip(index[token].tolist(), weight[token]):
            gate, up = (self.gate_up_proj[expert] @ x[token]).chunk(2)
            out[token] += self.down_proj[expert] @ bf16(self.act_fn(gate) * up) * scale
    return out


def load(folder, dtype):
    """The checkpoint's model, through from_pretrained, NVFP4 weights dequantised."""
    tensors = reference.load_tensors(folder)
    config = json.loads((folder / "config.json").read_text())
    config.pop("quantization_config", None)
    plain = {}
    for name, tensor in tensors.items():
        if name.endswith(("_scale", "_scale_2", "_scales")):
            continue
        if name.endswith("_blocks"):
            name = name.removesuffix("_blocks")
            tensor = reference.dequantize_mxfp4(tensor, tensors[name + "_scales"]).transpose(1, 2)
        elif tensor.dtype == torch.uint8 and tensor.dim() == 3:
            scales, scales_2 = tensors[name + "_weight_scale"], tensors[name + "_weight_scale_2"]
            tensor = torch.stack([torch.from_numpy(reference.dequantize(*parts)).T
                                  for parts in zip(tensor, scales, scales_2.tolist())])
        elif tensor.dtype == torch.uint8:
            scale, scale_2 = tensors[name + "_scale"], tensors[name + "_scale_2"]
            tensor = torch.from_numpy(reference.dequantize(tensor, scale, scale_2.item()))
        plain[name] = tensor.float().contiguous()
    with tempfile.TemporaryDirectory() as temporary:
        safetensors.torch.save_file(plain, pathlib.Path(temporary) / "model.safetensors", metadata={"format": "pt"})
        (pathlib.Path(temporary) / "config.json").write_text(json.dumps(config))
        model = AutoModelForCausalLM.from_pretrained(temporary, dtype=torch.float32, attn_implementation="eager")
    return model.to(dtype).eval()


class Patched:
    """transformers' classes with Tessera's rounding points, for the length of a with block."""

    PATCHES = [(modeling.Qwen3MoeRMSNorm, "forward", rms_norm), (modeling.Qwen3MoeRotaryEmbedding, "forward", rotary),
               (modeling, "eager_attention_forward", attention), (modeling.Qwen3MoeTopKRouter, "forward", router),
               (modeling.Qwen3MoeExperts, "forward", experts)]

    def __init__(self, model):
        self.model = model

    def __enter__(self):
        self.saved = [(owner, name, getattr(owner, name)) for owner, name, _ in self.PATCHES]
        for owner, name, new in self.PATCHES:
            setattr(owner, name, new)
        self.hooks = [m.register_forward_pre_hook(lambda _, args: (bf16(args[0]),))
                      for m in self.model.modules() if isinstance(m, torch.nn.Linear)]
        router.margin = 1.0

    def __exit__(self, *_):
        for owner, name, old in self.saved:
            setattr(owner, name, old)
        for hook in self.hooks:
            hook.remove()


@torch.no_grad()
def compute(folder, tokens):
    """Both kinds of logits, the final hidden states, and the smallest router margin (0 if rounding could flip)."""
    ids = torch.tensor([tokens])
    plain = load(folder, torch.float32)(ids).logits[0]
    model = load(folder, torch.float64)
    with Patched(model):
        hidden = model.model(ids).last_hidden_state
        logits = model.lm_head(hidden)[0]
    model = model.float()
    with Patched(model):
        single = model(ids).logits[0].double()
    stable = (single - logits)[:STRICT].abs().max() < 1e-6 * logits.abs().max()
    return {"tokens": torch.tensor(tokens, dtype=torch.int32), "logits": logits.float(), "logits_fp32": plain,
            "hidden": hidden[0].float()}, router.margin if stable else 0.0


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
    result, margin = compute(target, tokens)
    if margin < ROUTER_MARGIN:
        return False

    quantized = HERE / f"{name}_nvfp4"
    shutil.rmtree(quantized, ignore_errors=True)
    argv, sys.argv = sys.argv, ["", str(target), str(quantized)]
    reference.main()
    sys.argv = argv
    quantized_result, quantized_margin = compute(quantized, tokens)
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
    result, _ = compute(folder, tokens)
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
    with Patched(model):
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

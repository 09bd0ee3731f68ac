"""Makes tiny random checkpoints of the model families beside Qwen3-MoE, and the logits that transformers computes for them.

    python3 make_families.py [NAME ...]    # into NAME_bf16, NAME_nvfp4, ... beside this script; all without names

As make_golden.py, which see, but logits_fp32 has the first positions alone. What a name stands for is in FAMILIES.
"""

import json
import shutil
import sys

import numpy as np
import safetensors.torch
import torch
import transformers
from transformers.models.deepseek_v2 import modeling_deepseek_v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3
from transformers.models.glm4_moe import modeling_glm4_moe
from transformers.models.glm4_moe_lite import modeling_glm4_moe_lite
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.llama import modeling_llama
from transformers.models.minimax_m2 import modeling_minimax_m2
from transformers.models.mistral import modeling_mistral
from transformers.models.mixtral import modeling_mixtral
from transformers.models.olmoe import modeling_olmoe
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.smollm3 import modeling_smollm3

from reference_model import HERE, ROUTERS, STRICT, TOKENS, compute, reference

E2M1_MAX_EXPONENT = 2
MXFP4_BLOCK = 32
# A router's scores or groups that differ by less could be chosen otherwise by rounding.
SCORE_MARGIN = 4e-4


def rope(kind="default", theta=1e4, **scaling):
    return dict(rope_type=kind, rope_theta=theta, **scaling)


# Sizes that are no multiple of 64, nor of 16 in the vocabulary; prompts of 75 tokens are longer than every window.
COMMON = dict(vocab_size=41, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
              eos_token_id=1, bos_token_id=0, pad_token_id=None)
FAMILIES = {
    # Llama 3's rope scaling (of all three kinds of wavelength), biases on every matrix.
    "llama": (modeling_llama, dict(
        num_hidden_layers=2, intermediate_size=48, head_dim=16, attention_bias=True, mlp_bias=True,
        rope_parameters=rope("llama3", 500.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                             original_max_position_embeddings=64))),
    # A window in every layer, a tied output matrix.
    "mistral": (modeling_mistral, dict(num_hidden_layers=2, intermediate_size=48, head_dim=16, sliding_window=20,
                                       tie_word_embeddings=True, rope_parameters=rope())),
    # Biases on q, k and v alone; a window from the second layer on; the head size follows from the hidden size.
    "qwen2": (modeling_qwen2, dict(num_hidden_layers=3, intermediate_size=48, use_sliding_window=True,
                                   sliding_window=24, max_window_layers=1, rope_parameters=rope(theta=1e6))),
    # Norms of query and key heads; YaRN.
    "qwen3": (modeling_qwen3, dict(
        num_hidden_layers=2, intermediate_size=48, head_dim=16, num_key_value_heads=1,
        rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=64))),
    # Every other layer without positions.
    "smollm3": (modeling_smollm3, dict(num_hidden_layers=3, intermediate_size=48, no_rope_layers=[1, 0, 1],
                                       tie_word_embeddings=True, rope_parameters=rope())),
    "mixtral": (modeling_mixtral, dict(num_hidden_layers=2, intermediate_size=48, head_dim=16, num_local_experts=4,
                                       num_experts_per_tok=2, rope_parameters=rope(theta=1e6))),
    # One norm for all heads of a query or key; weights that are not renormalised.
    "olmoe": (modeling_olmoe, dict(num_hidden_layers=2, intermediate_size=16, num_experts=6, num_experts_per_tok=3,
                                   norm_topk_prob=False, rope_parameters=rope())),
    # The same norm, half of each head rotates, sigmoid scores with a correction.
    "minimax_m2": (modeling_minimax_m2, dict(
        num_hidden_layers=2, intermediate_size=16, head_dim=16, num_local_experts=6, num_experts_per_tok=3,
        rope_parameters=rope(theta=5e6, partial_rotary_factor=0.5))),
    # Windows and full attention in turn, sinks, biases everywhere, stacked experts whose matrices are square, YaRN
    # without rounded bounds; a limit that clamps.
    "gpt_oss": (modeling_gpt_oss, dict(
        num_hidden_layers=3, intermediate_size=32, head_dim=16, num_local_experts=4, num_experts_per_tok=2,
        sliding_window=24, swiglu_limit=2.0,
        rope_parameters=rope("yarn", 150000.0, factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                             original_max_position_embeddings=64))),
    # Half of each head rotates; head norms; biases on q, k and v; a dense layer, a shared expert, a layer for
    # predicting several tokens.
    "glm4_moe": (modeling_glm4_moe, dict(
        num_hidden_layers=3, intermediate_size=48, moe_intermediate_size=16, head_dim=16, attention_bias=True,
        use_qk_norm=True, n_routed_experts=6, num_experts_per_tok=3, n_shared_experts=1, first_k_dense_replace=1,
        routed_scaling_factor=1.5, num_nextn_predict_layers=1,
        rope_parameters=rope(partial_rotary_factor=0.5))),
    # Latent attention with low-rank queries, interleaved rope with YaRN's scale on the softmax, groups of experts, two
    # shared experts, a norm epsilon that is not the latents'.
    "deepseek_v3": (modeling_deepseek_v3, dict(
        num_hidden_layers=3, num_key_value_heads=4, intermediate_size=48, moe_intermediate_size=16, q_lora_rank=16,
        kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, n_routed_experts=8, n_group=4,
        topk_group=2, num_experts_per_tok=3, n_shared_experts=2, first_k_dense_replace=1, rms_norm_eps=1e-3,
        num_nextn_predict_layers=1,
        rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=64, mscale=0.7,
                             mscale_all_dim=1.0))),
    # The same with one matrix for queries, halves that rotate, value heads of another size, no groups.
    "moonlight": (modeling_deepseek_v3, dict(
        num_hidden_layers=2, num_key_value_heads=4, intermediate_size=48, moe_intermediate_size=16, q_lora_rank=None,
        kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=12, n_routed_experts=4, n_group=1,
        topk_group=1, num_experts_per_tok=2, n_shared_experts=1, first_k_dense_replace=0, rope_interleave=False,
        norm_topk_prob=False, num_nextn_predict_layers=0, rope_parameters=rope())),
    # Softmax over all experts, scaled and not renormalised; no head rotates a multiple of four elements.
    "deepseek_v2": (modeling_deepseek_v2, dict(
        num_hidden_layers=2, num_key_value_heads=4, intermediate_size=48, moe_intermediate_size=16, q_lora_rank=None,
        kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=6, v_head_dim=8, n_routed_experts=6, n_group=1,
        topk_group=1, num_experts_per_tok=2, n_shared_experts=2, first_k_dense_replace=1, routed_scaling_factor=1.25,
        rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=64, mscale=0.707,
                             mscale_all_dim=0.707))),
    # A list says which layers are dense.
    "glm4_moe_lite": (modeling_glm4_moe_lite, dict(
        num_hidden_layers=2, num_key_value_heads=4, intermediate_size=48, moe_intermediate_size=16, q_lora_rank=16,
        kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=16, n_routed_experts=4,
        num_experts_per_tok=2, mlp_layer_types=["sparse", "dense"], rope_parameters=rope(theta=1e6))),
}
QUANTIZED = {"mixtral": ["nvfp4"], "gpt_oss": ["nvfp4", "mxfp4"], "glm4_moe": ["nvfp4"], "deepseek_v3": ["nvfp4"],
             "minimax_m2": ["nvfp4"]}


def fill(model, transposed_experts):
    for name, x in [*model.named_parameters(), *model.named_buffers()]:
        if "norm" in name:
            x.data.uniform_(0.5, 1.5)
        elif name.endswith("correction_bias"):
            x.data.normal_(0, 0.2)
        elif name.endswith("bias"):
            x.data.normal_(0, 0.3)
        elif "embed" in name or name.endswith("sinks"):
            x.data.normal_(0, 1.0)
        elif name.endswith(("gate.weight", "router.weight")):
            x.data.normal_(0, 1.0 / x.shape[-1] ** 0.5)
        elif x.dim() > 1:
            size = x.shape[1] if transposed_experts and x.dim() == 3 else x.shape[-1]
            x.data.normal_(0, 1.3 / size ** 0.5)


def finish(folder, config):
    """What save_pretrained does not write: the correction in float32, and a layer for predicting several tokens."""
    tensors = reference.load_tensors(folder)
    for name in tensors:
        if name.endswith("e_score_correction_bias"):
            tensors[name] = tensors[name].float()
    if getattr(config, "num_nextn_predict_layers", 0):
        layer = f"model.layers.{config.num_hidden_layers}."
        tensors[layer + "enorm.weight"] = torch.ones(config.hidden_size, dtype=torch.bfloat16)
        tensors[layer + "mlp.gate.weight"] = torch.ones(2, config.hidden_size, dtype=torch.bfloat16)
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def stacked_nvfp4(weight):
    """[experts, out, in] to codes, block scales and one tensor scale an expert."""
    parts = [reference.quantize(w.numpy(), w.abs().max().item()) for w in weight.float()]
    return {"": torch.stack([p[0] for p in parts]), "_weight_scale": torch.stack([p[1] for p in parts]),
            "_weight_scale_2": torch.stack([p[2] for p in parts])}


def stacked_mxfp4(weight):
    """[experts, out, in] to blocks [experts, out, in / 32, 16] and their exponents (OCP MX 1.0, section 6.3)."""
    blocks = weight.float().reshape(*weight.shape[:-1], -1, MXFP4_BLOCK).numpy()
    exponent = np.floor(np.log2(np.abs(blocks).max(-1))) - E2M1_MAX_EXPONENT
    code = reference.encode_e2m1((blocks / 2.0 ** exponent[..., None]).astype(np.float32))
    packed = code[..., 0::2] | (code[..., 1::2] << 4)
    return {"_blocks": torch.from_numpy(packed), "_scales": torch.from_numpy((exponent + 127).astype(np.uint8))}


def quantize_stacked(source, target, kind):
    """gpt-oss: experts alone, from [experts, in, out] to [experts, out, in]."""
    target.mkdir()
    out = {}
    for name, tensor in reference.load_tensors(source).items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            quantize = stacked_nvfp4 if kind == "nvfp4" else stacked_mxfp4
            out.update({name + suffix: t for suffix, t in quantize(tensor.transpose(1, 2)).items()})
        else:
            out[name] = tensor
    safetensors.torch.save_file(out, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = ({"quant_method": "mxfp4"} if kind == "mxfp4" else
                                     reference.quantization_config([]))
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def make(name, seed):
    modeling, sizes = FAMILIES[name]
    torch.manual_seed(seed)
    causal = next(v for k, v in vars(modeling).items() if k.endswith("ForCausalLM"))
    config = causal.config_class(**{**COMMON, **sizes})
    model = causal(config)
    fill(model, transposed_experts=name == "gpt_oss")
    source = HERE / f"{name}_bf16"
    shutil.rmtree(source, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(source)
    (source / "generation_config.json").unlink(missing_ok=True)
    finish(source, config)
    tokens = np.random.default_rng(seed).integers(0, config.vocab_size, TOKENS).tolist()
    margin_needed = SCORE_MARGIN if ROUTERS.keys() & vars(modeling).keys() else 0
    folders = [source]
    for kind in QUANTIZED.get(name, []):
        folders.append(HERE / f"{name}_{kind}")
        shutil.rmtree(folders[-1], ignore_errors=True)
        if name == "gpt_oss":
            quantize_stacked(source, folders[-1], kind)
        else:
            argv, sys.argv = sys.argv, ["", str(source), str(folders[-1])]
            reference.main()
            sys.argv = argv
    for folder in folders:
        result, margin = compute(modeling, folder, tokens)
        if margin <= margin_needed:
            return False
        del result["hidden"]
        result["logits_fp32"] = result["logits_fp32"][:STRICT].clone()
        safetensors.torch.save_file(result, folder / "golden.safetensors")
        difference = (result["logits"][:STRICT] - result["logits_fp32"]).abs().max().item()
        print(f"{folder.name}: seed {seed}, logits up to {result['logits'].abs().max():.2f}, BF16 roundings move them by "
              f"up to {difference:.3f}, smallest router margin {margin:.1e}")
    return True


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in sys.argv[1:] or FAMILIES:
        next(seed for seed in range(100) if make(name, seed))


if __name__ == "__main__":
    main()

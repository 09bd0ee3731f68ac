"""Makes tiny random checkpoints of the model families beside Qwen3-MoE, and the logits that transformers computes for them.

    python3 make_families.py [NAME ...]    # into NAME_bf16, NAME_nvfp4, ... beside this script; all without names

As make_golden.py, which see, with these differences: logits_fp32 has the first positions alone, and latent attention is
computed in the absorbed form, as Tessera does, so that both round the same values. What a name stands for is in FAMILIES.
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

import make_golden as golden
from make_golden import bf16
from make_golden import reference

E2M1_MAX_EXPONENT = 2
MXFP4_BLOCK = 32
# A router's scores or groups that differ by less could be chosen otherwise by rounding.
SCORE_MARGIN = 4e-4


class Margin:
    smallest = 1.0

    @classmethod
    def note(cls, values, kept):
        """values: what the choice is made by; kept: how many of a row are chosen."""
        if kept < values.shape[-1]:
            best = values.topk(kept + 1, -1).values
            cls.smallest = min(cls.smallest, (best[:, -2] - best[:, -1]).min().item())


def attention(module, query, key, value, mask, scaling, sliding_window=None, s_aux=None, **kwargs):
    query, key, value = bf16(query), bf16(key), bf16(value)
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(2, 3) * scaling
    length = scores.shape[-1]
    distance = torch.arange(length)[:, None] - torch.arange(length)[None, :]
    visible = distance >= 0
    if sliding_window is not None:
        visible &= distance < sliding_window
    scores = scores.masked_fill(~visible, float("-inf"))
    if s_aux is not None:
        scores = torch.cat((scores, s_aux.reshape(1, -1, 1, 1).expand(1, -1, length, 1)), -1)
    probabilities = torch.softmax(scores, -1)[..., :length]
    return (probabilities @ value).transpose(1, 2).contiguous(), probabilities


def rotary_halves(self, x, position_ids):
    cos, sin = golden.rotary(self, x, position_ids)
    half = cos.shape[-1] // 2
    return cos[..., :half], sin[..., :half]


def rotate(x, cos, sin, interleaved):
    """x [..., positions, dim]; the result's order does not matter, being the same for queries and keys."""
    half = x.shape[-1] // 2
    cos, sin = cos[0, :, :half], sin[0, :, :half]
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def latent_attention(self, hidden_states, position_embeddings, attention_mask, **kwargs):
    batch, length = hidden_states.shape[:2]
    if self.q_lora_rank is None:
        q = self.q_proj(hidden_states)
    else:
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(hidden_states)))
    q = q.view(length, self.num_heads, self.qk_head_dim).transpose(0, 1)
    kv = self.kv_a_proj_with_mqa(hidden_states)[0]
    latent = self.kv_a_layernorm(kv[:, :self.kv_lora_rank])
    interleaved = getattr(self.config, "rope_interleave", True)  # DeepSeek-V2 has no choice
    rotated = [rotate(x, *position_embeddings, interleaved)
               for x in (q[..., self.qk_nope_head_dim:], kv[:, self.kv_lora_rank:])]
    up = self.kv_b_proj.weight.view(self.num_heads, self.qk_nope_head_dim + self.v_head_dim, self.kv_lora_rank)
    key_up, value_up = up.split((self.qk_nope_head_dim, self.v_head_dim), 1)
    query = bf16(torch.cat((bf16(q[..., :self.qk_nope_head_dim]) @ key_up, rotated[0]), -1))
    key = bf16(torch.cat((latent, rotated[1]), -1))
    scores = query @ key.T * self.scaling
    scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf"))
    out = bf16(torch.softmax(scores, -1) @ bf16(latent)) @ value_up.transpose(1, 2)
    return self.o_proj(out.transpose(0, 1).reshape(batch, length, -1)), None


def softmax_router(self, x):
    logits = torch.nn.functional.linear(bf16(x.reshape(-1, self.hidden_dim)), self.weight)
    Margin.note(logits, self.top_k)
    value, index = torch.softmax(logits, -1).topk(self.top_k, -1)
    if getattr(self, "norm_topk_prob", True):  # Mixtral has no choice
        value = value / value.sum(-1, keepdim=True)
    return logits, value, index


def corrected_router(self, x, correction):
    logits = torch.nn.functional.linear(bf16(x.reshape(-1, self.hidden_dim)), self.weight)
    scores = logits.sigmoid()
    Margin.note(scores + correction, self.top_k)
    index = (scores + correction).topk(self.top_k, -1).indices
    weight = scores.gather(1, index)
    return logits, weight / weight.sum(-1, keepdim=True), index


def plain_router(self, x):
    logits = torch.nn.functional.linear(bf16(x.reshape(-1, self.hidden_dim)), self.weight)
    Margin.note(logits, self.top_k)
    value, index = torch.softmax(logits, -1).topk(self.top_k, -1)
    return logits, value * self.routed_scaling_factor, index


def selected_router(self, x):
    logits = torch.nn.functional.linear(bf16(x), self.weight, self.bias)
    Margin.note(logits, self.top_k)
    value, index = logits.topk(self.top_k, -1)
    return logits, torch.softmax(value, -1), index


def sigmoid_router(self, x):
    logits = torch.nn.functional.linear(bf16(x.reshape(-1, self.hidden_dim)), self.weight)
    scores = logits.sigmoid()
    choice = scores + self.e_score_correction_bias
    grouped = choice.view(-1, self.num_group, self.num_experts // self.num_group)
    group_scores = grouped.topk(2, -1).values.sum(-1)
    Margin.note(group_scores, self.topk_group)
    keep = torch.zeros_like(group_scores).scatter_(1, group_scores.topk(self.topk_group, -1).indices, 1).bool()
    choice = grouped.masked_fill(~keep[..., None], float("-inf")).view_as(choice)
    Margin.note(choice.clamp(min=-1e9), self.top_k)
    index = choice.topk(self.top_k, -1).indices
    weight = scores.gather(1, index)
    if self.norm_topk_prob:
        weight = weight / (weight.sum(-1, keepdim=True) + 1e-20)
    return logits, weight * self.routed_scaling_factor, index


def clamped_experts(self, x, index, weight):
    x = bf16(x)
    out = torch.zeros_like(x)
    for token in range(x.shape[0]):
        for expert, scale in zip(index[token].tolist(), weight[token]):
            gate_up = x[token] @ self.gate_up_proj[expert] + self.gate_up_proj_bias[expert]
            gate, up = gate_up[0::2].clamp(max=self.limit), gate_up[1::2].clamp(-self.limit, self.limit)
            hidden = bf16(gate * torch.sigmoid(self.alpha * gate) * (up + 1))
            out[token] += (hidden @ self.down_proj[expert] + self.down_proj_bias[expert]) * scale
    return out


ROUTERS = {"MixtralTopKRouter": softmax_router, "OlmoeTopKRouter": softmax_router,
           "MiniMaxM2TopKRouter": corrected_router, "GptOssTopKRouter": selected_router,
           "Glm4MoeTopkRouter": sigmoid_router, "Glm4MoeLiteTopkRouter": sigmoid_router,
           "DeepseekV3TopkRouter": sigmoid_router, "DeepseekV2TopkRouter": plain_router}


class Patched:
    """A modeling module's classes with Tessera's rounding points, for the length of a with block."""

    def __init__(self, modeling, model):
        self.model = model
        self.patches = [(modeling, "eager_attention_forward", attention)]
        for name, value in vars(modeling).items():
            if not isinstance(value, type) or value.__module__ != modeling.__name__:
                continue
            if name.endswith("RMSNorm"):
                self.patches.append((value, "forward", golden.rms_norm))
            elif name == "GptOssRotaryEmbedding":
                self.patches.append((value, "forward", rotary_halves))
            elif name.endswith("RotaryEmbedding"):
                self.patches.append((value, "forward", golden.rotary))
            elif name in ROUTERS:
                self.patches.append((value, "forward", ROUTERS[name]))
            elif name == "GptOssExperts":
                self.patches.append((value, "forward", clamped_experts))
            elif name.endswith(("Experts", "NaiveMoe")):
                self.patches.append((value, "forward", golden.experts))
            elif name in ("DeepseekV2Attention", "DeepseekV3Attention", "Glm4MoeLiteAttention"):
                self.patches.append((value, "forward", latent_attention))

    def __enter__(self):
        self.saved = [(owner, name, getattr(owner, name)) for owner, name, _ in self.patches]
        for owner, name, new in self.patches:
            setattr(owner, name, new)
        self.hooks = [m.register_forward_pre_hook(lambda _, args: (bf16(args[0]),))
                      for m in self.model.modules() if isinstance(m, torch.nn.Linear)]
        Margin.smallest = 1.0

    def __exit__(self, *_):
        for owner, name, old in self.saved:
            setattr(owner, name, old)
        for hook in self.hooks:
            hook.remove()


@torch.no_grad()
def compute(modeling, folder, tokens):
    """Logits, and the smallest router margin (0 if rounding could flip a value at the first positions)."""
    ids = torch.tensor([tokens])
    plain = golden.load(folder, torch.float32)(ids).logits[0]
    model = golden.load(folder, torch.float64)
    with Patched(modeling, model):
        logits = model(ids).logits[0]
    margin = Margin.smallest
    model = model.float()
    with Patched(modeling, model):
        single = model(ids).logits[0].double()
    stable = (single - logits)[:golden.STRICT].abs().max() < 1e-6 * logits.abs().max()
    return {"tokens": torch.tensor(tokens, dtype=torch.int32), "logits": logits.float(),
            "logits_fp32": plain[:golden.STRICT].clone()}, margin if stable else 0.0


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
    source = golden.HERE / f"{name}_bf16"
    shutil.rmtree(source, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(source)
    (source / "generation_config.json").unlink(missing_ok=True)
    finish(source, config)
    tokens = np.random.default_rng(seed).integers(0, config.vocab_size, golden.TOKENS).tolist()
    margin_needed = SCORE_MARGIN if ROUTERS.keys() & vars(modeling).keys() else 0
    folders = [source]
    for kind in QUANTIZED.get(name, []):
        folders.append(golden.HERE / f"{name}_{kind}")
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
        safetensors.torch.save_file(result, folder / "golden.safetensors")
        difference = (result["logits"][:golden.STRICT] - result["logits_fp32"]).abs().max().item()
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

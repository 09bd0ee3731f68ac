"""transformers' models with the rounding points of Tessera, in float64: what the scripts beside this one compute logits with.

Tensors that Tessera rounds to BF16 are rounded to BF16 here too: the input of every matrix product, queries, keys and values.
Latent attention is computed in the absorbed form, as Tessera does, so that both round the same values. Needs torch,
transformers and safetensors.
"""

import json
import pathlib
import sys
import tempfile

import safetensors.torch
import torch
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import quantize_reference as reference  # noqa: E402

TOKENS = 75  # past a tile of 64 keys and several blocks of 16
# Seeds are chosen so that the same rounding points in float32 give the same logits to 1e-6 of their size at the first
# positions: no value there sits so close to a rounding boundary that accumulation order would push it across.
STRICT = 24


class Margin:
    """How close a router came to another choice."""

    smallest = 1.0

    @classmethod
    def note(cls, values, kept):
        """values: what the choice is made by; kept: how many of a row are chosen."""
        if kept < values.shape[-1]:
            best = values.topk(kept + 1, -1).values
            cls.smallest = min(cls.smallest, (best[:, -2] - best[:, -1]).min().item())


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
    cos, sin = rotary(self, x, position_ids)
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


def experts(self, x, index, weight):
    x = bf16(x)
    out = torch.zeros_like(x)
    for token in range(x.shape[0]):
        for expert, scale in zip(index[token].tolist(), weight[token]):
            gate, up = (self.gate_up_proj[expert] @ x[token]).chunk(2)
            out[token] += self.down_proj[expert] @ bf16(self.act_fn(gate) * up) * scale
    return out


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


ROUTERS = {"Qwen3MoeTopKRouter": softmax_router, "MixtralTopKRouter": softmax_router, "OlmoeTopKRouter": softmax_router,
           "MiniMaxM2TopKRouter": corrected_router, "GptOssTopKRouter": selected_router,
           "Glm4MoeTopkRouter": sigmoid_router, "Glm4MoeLiteTopkRouter": sigmoid_router,
           "DeepseekV3TopkRouter": sigmoid_router, "DeepseekV2TopkRouter": plain_router}


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
    """A modeling module's classes with Tessera's rounding points, for the length of a with block."""

    def __init__(self, modeling, model):
        self.model = model
        self.patches = [(modeling, "eager_attention_forward", attention)]
        for name, value in vars(modeling).items():
            if not isinstance(value, type) or value.__module__ != modeling.__name__:
                continue
            if name.endswith("RMSNorm"):
                self.patches.append((value, "forward", rms_norm))
            elif name == "GptOssRotaryEmbedding":
                self.patches.append((value, "forward", rotary_halves))
            elif name.endswith("RotaryEmbedding"):
                self.patches.append((value, "forward", rotary))
            elif name in ROUTERS:
                self.patches.append((value, "forward", ROUTERS[name]))
            elif name == "GptOssExperts":
                self.patches.append((value, "forward", clamped_experts))
            elif name.endswith(("Experts", "NaiveMoe")):
                self.patches.append((value, "forward", experts))
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
    """Logits with and without the rounding points, final hidden states, and the smallest margin of a router (0 if rounding
    could flip a value at the first positions)."""
    ids = torch.tensor([tokens])
    plain = load(folder, torch.float32)(ids).logits[0]
    model = load(folder, torch.float64)
    with Patched(modeling, model):
        hidden = model.model(ids).last_hidden_state
        logits = model.lm_head(hidden)[0]
    margin = Margin.smallest
    model = model.float()
    with Patched(modeling, model):
        single = model(ids).logits[0].double()
    stable = (single - logits)[:STRICT].abs().max() < 1e-6 * logits.abs().max()
    return {"tokens": torch.tensor(tokens, dtype=torch.int32), "logits": logits.float(), "logits_fp32": plain,
            "hidden": hidden[0].float()}, margin if stable else 0.0

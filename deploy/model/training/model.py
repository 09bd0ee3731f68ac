"""A Qwen3-MoE language model for fast training.

The mixture of experts is computed as one wide SwiGLU layer over all experts, whose hidden units are multiplied by
their expert's routing weight (zero where the router did not choose it). For a model this small that is faster than
sorting tokens by expert, and it is the same function as transformers' Qwen3MoeForCausalLM.
"""

import dataclasses
import typing

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import flex_attention

import nvfp4


@dataclasses.dataclass
class Numerics:
    """How the two sides of a matrix product are rounded before it."""

    activation: typing.Callable
    weight: typing.Callable


TRAINING = Numerics(lambda x: x.to(torch.bfloat16), lambda w: w.to(torch.bfloat16))
EXACT = Numerics(lambda x: x.float(), lambda w: w.float())
# What a server does (weights as stored, activations in BF16, float32 sums), in arithmetic that every CPU has.
SERVING = Numerics(lambda x: x.to(torch.bfloat16).float(), lambda w: w.float())
numerics = TRAINING


def product(x, w):
    return F.linear(numerics.activation(x), numerics.weight(w))


def rms_norm(x, weight, eps):
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rope(x, cos, sin):
    """x: [rows, heads, length, head_dim]; rotates the two halves of each head (NeoX style)."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def top_k_mask(probs, k):
    """1 for the k largest of the last dimension (the lower index wins a tie). Unlike topk it fuses."""
    index = torch.arange(probs.shape[-1], device=probs.device)
    mine, other = probs.unsqueeze(-1), probs.unsqueeze(-2)
    ahead = (other > mine) | ((other == mine) & (index < index.unsqueeze(-1)))
    return (ahead.sum(-1) < k).to(probs.dtype)


class Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.qkv = nn.Parameter(torch.empty(q + 2 * kv, shape.hidden))
        self.o = nn.Parameter(torch.empty(shape.hidden, q))
        self.q_norm = nn.Parameter(torch.ones(shape.head_dim))
        self.k_norm = nn.Parameter(torch.ones(shape.head_dim))

    def forward(self, x, cos, sin, attend, mask, quantize):
        s = self.shape
        qkv = nvfp4.fake_quantize(self.qkv, (0, 1), quantize)
        o = nvfp4.fake_quantize(self.o, (0, 1), quantize)
        y = product(x, qkv).unflatten(-1, (-1, s.head_dim)).transpose(1, 2)
        q, k, v = y.split((s.heads, s.kv_heads, s.kv_heads), 1)
        q = numerics.activation(rope(rms_norm(q, self.q_norm, s.norm_eps), cos, sin))
        k = numerics.activation(rope(rms_norm(k, self.k_norm, s.norm_eps), cos, sin))
        v = numerics.activation(v.contiguous())
        return product(attend(q, k, v, mask).transpose(1, 2).flatten(2), o)


class Experts(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        e, i, h = shape.experts, shape.expert_hidden, shape.hidden
        self.router = nn.Parameter(torch.empty(e, h))
        self.gate_up = nn.Parameter(torch.empty(e, 2, i, h))  # [expert, gate or up, out, in]
        self.down = nn.Parameter(torch.empty(e, h, i))

    def forward(self, x, quantize):
        s = self.shape
        logits = F.linear(x, self.router)  # float32
        probs = logits.softmax(-1)
        kept = top_k_mask(probs.detach(), s.top_k)
        weights = probs * kept
        weights = weights / weights.sum(-1, keepdim=True)
        gate_up = nvfp4.fake_quantize(self.gate_up, (1, 2, 3), quantize)
        down = nvfp4.fake_quantize(self.down, (1, 2), quantize)
        gate = product(x, gate_up[:, 0].flatten(0, 1))
        up = product(x, gate_up[:, 1].flatten(0, 1))
        hidden = (F.silu(gate.float()) * up).unflatten(-1, (s.experts, -1)) * weights.unsqueeze(-1)
        out = product(hidden.flatten(2), down.transpose(0, 1).flatten(1))
        load = kept.mean((0, 1))  # the share of tokens that each expert got
        balance = s.experts / s.top_k * (load * probs.mean((0, 1))).sum()
        return out, balance, logits.logsumexp(-1).pow(2).mean(), load


class Layer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.eps = shape.norm_eps
        self.attention_norm = nn.Parameter(torch.ones(shape.hidden))
        self.attention = Attention(shape)
        self.mlp_norm = nn.Parameter(torch.ones(shape.hidden))
        self.mlp = Experts(shape)

    def forward(self, x, cos, sin, attend, mask, quantize):
        x = x + self.attention(rms_norm(x, self.attention_norm, self.eps), cos, sin, attend, mask, quantize)
        y, balance, z, load = self.mlp(rms_norm(x, self.mlp_norm, self.eps), quantize)
        return x + y, balance, z, load


def head_loss(x, embed, targets, weights):
    """Sums over the positions with weight 1 of cross-entropy, of log(Z)^2 and of the weights."""
    logits = product(x, embed).float()
    log_sum = logits.logsumexp(-1)
    picked = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return ((log_sum - picked) * weights).sum(), (log_sum.pow(2) * weights).sum(), weights.sum()


class Model(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.embed = nn.Parameter(torch.empty(shape.vocab, shape.hidden))
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.Parameter(torch.ones(shape.hidden))
        inverse = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
        angle = torch.outer(torch.arange(shape.context).float(), inverse)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        self.head_loss = head_loss
        self.reset()

    @torch.no_grad()
    def reset(self):
        for name, p in self.named_parameters():
            if p.dim() > 1:
                narrow = name.endswith((".o", ".down"))  # these write to the residual stream
                p.normal_(0, 0.02 if name == "embed" else p.shape[-1] ** -0.5 * (0.3 if narrow else 0.7))

    def hidden(self, tokens, positions, attend, mask, quantize):
        """tokens, positions: [rows, length]. quantize: a scalar tensor, 1 to see NVFP4 weights, 0 for BF16.

        Returns the final hidden states, the router losses summed over layers, and each expert's load.
        """
        x = F.embedding(tokens, self.embed)
        cos = F.embedding(positions, self.cos).unsqueeze(1)
        sin = F.embedding(positions, self.sin).unsqueeze(1)
        balance = z = 0.0
        loads = []
        for layer in self.layers:
            x, layer_balance, layer_z, load = layer(x, cos, sin, attend, mask, quantize)
            balance, z = balance + layer_balance, z + layer_z
            loads.append(load)
        return rms_norm(x, self.norm, self.shape.norm_eps), balance, z, torch.stack(loads)


# Attention comes in two forms with one interface: `mask_of(documents)` makes what `attend(q, k, v, mask)` takes.
# documents: [rows, length], numbers of documents, rising along a row. A token sees its own document up to itself.


class PlainAttention:
    @staticmethod
    def mask_of(documents):
        length = documents.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=documents.device).tril()
        return ((documents.unsqueeze(2) == documents.unsqueeze(1)) & causal).unsqueeze(1)

    @staticmethod
    def attend(q, k, v, mask):
        repeat = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class BlockAttention:
    """torch's FlexAttention, which skips blocks that the mask hides; it must be compiled (with the layer)."""

    BLOCK = 128

    @staticmethod
    def mask_of(documents):
        size = BlockAttention.BLOCK
        rows, length = documents.shape
        first, last = documents[:, ::size], documents[:, size - 1 :: size]
        n = first.shape[1]
        at = torch.arange(n, device=documents.device)
        earlier = at.unsqueeze(0) < at.unsqueeze(1)  # [query block, key block]
        full = earlier & (first.unsqueeze(1) == last.unsqueeze(2))  # one document from key block to query block
        some = (earlier | torch.eye(n, dtype=torch.bool, device=documents.device)) & (
            last.unsqueeze(1) >= first.unsqueeze(2))

        def listed(blocks):
            blocks = blocks.unsqueeze(1).int()
            return blocks.sum(-1).int(), blocks.argsort(stable=True, dim=-1, descending=True).int()

        def visible(row, head, query, key):
            return (documents[row, query] == documents[row, key]) & (query >= key)

        return flex_attention.BlockMask.from_kv_blocks(
            *listed(some & ~full), *listed(full), BLOCK_SIZE=size, mask_mod=visible, seq_lengths=(length, length))

    @staticmethod
    def attend(q, k, v, mask):
        return flex_attention.flex_attention(q, k, v, block_mask=mask, enable_gqa=True)


def hf_tensors(model):
    """The weights under their names in a Qwen3MoeForCausalLM checkpoint, in BF16."""
    s = model.shape
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    out = {"model.embed_tokens.weight": model.embed}
    for n, layer in enumerate(model.layers):
        p = f"model.layers.{n}."
        out[p + "input_layernorm.weight"] = layer.attention_norm
        out[p + "post_attention_layernorm.weight"] = layer.mlp_norm
        for name, w in zip(("q", "k", "v"), layer.attention.qkv.split((q, kv, kv))):
            out[p + f"self_attn.{name}_proj.weight"] = w
        out[p + "self_attn.o_proj.weight"] = layer.attention.o
        out[p + "self_attn.q_norm.weight"] = layer.attention.q_norm
        out[p + "self_attn.k_norm.weight"] = layer.attention.k_norm
        out[p + "mlp.gate.weight"] = layer.mlp.router
        for e in range(s.experts):
            out[p + f"mlp.experts.{e}.gate_proj.weight"] = layer.mlp.gate_up[e, 0]
            out[p + f"mlp.experts.{e}.up_proj.weight"] = layer.mlp.gate_up[e, 1]
            out[p + f"mlp.experts.{e}.down_proj.weight"] = layer.mlp.down[e]
    out["model.norm.weight"] = model.norm
    return {name: w.detach().to("cpu", torch.bfloat16).contiguous().clone() for name, w in out.items()}

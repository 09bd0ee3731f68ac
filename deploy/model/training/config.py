"""The shape of the bundled model and its Hugging Face configuration."""

import dataclasses


@dataclasses.dataclass
class Shape:
    vocab: int = 8192
    hidden: int = 384
    layers: int = 8
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 64
    experts: int = 16
    top_k: int = 4
    expert_hidden: int = 128
    context: int = 2048
    rope_theta: float = 10000.0
    norm_eps: float = 1e-6

    def hf_config(self):
        return {
            "architectures": ["Qwen3MoeForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": None,
            "decoder_sparse_step": 1,
            "eos_token_id": self.vocab - 1,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "initializer_range": 0.02,
            "intermediate_size": self.expert_hidden * self.top_k,
            "max_position_embeddings": self.context,
            "max_window_layers": self.layers,
            "mlp_only_layers": [],
            "model_type": "qwen3_moe",
            "moe_intermediate_size": self.expert_hidden,
            "norm_topk_prob": True,
            "num_attention_heads": self.heads,
            "num_experts": self.experts,
            "num_experts_per_tok": self.top_k,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "output_router_logits": False,
            "pad_token_id": self.vocab - 3,
            "rms_norm_eps": self.norm_eps,
            "rope_scaling": None,
            "rope_theta": self.rope_theta,
            "router_aux_loss_coef": 0.001,
            "sliding_window": None,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "use_cache": True,
            "use_sliding_window": False,
            "vocab_size": self.vocab,
        }


TINY = Shape(vocab=8192, hidden=64, layers=2, heads=2, kv_heads=1, experts=4, top_k=2, expert_hidden=64)
BUNDLED = Shape()

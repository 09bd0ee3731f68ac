"""Qwen3-MoE models as GGUF files: of a checkpoint in NVFP4, its values untouched, or of made-up weights."""

import json
import pathlib
import struct

import gguf_file
import nvfp4_forms
from dummy_weights import DummyWeights
from safetensors_file import SafetensorsFile

# Matrices of a layer: name in the checkpoint, name in the file.
ATTENTION = (("self_attn.q_proj", "attn_q"), ("self_attn.k_proj", "attn_k"), ("self_attn.v_proj", "attn_v"),
             ("self_attn.o_proj", "attn_output"))
EXPERTS = (("gate_proj", "ffn_gate_exps"), ("up_proj", "ffn_up_exps"), ("down_proj", "ffn_down_exps"))
NORMS = (("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm"), ("self_attn.q_norm", "attn_q_norm"),
         ("self_attn.k_norm", "attn_k_norm"))


FILE_TYPES = {"BF16": 32, "Q4_0": 2, "NVFP4": 39}


def matrix_shape(config, name):
    """[rows, columns] of a matrix by the last part of its name in the checkpoint."""
    hidden, inner, head = config["hidden_size"], config["moe_intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    return {"q_proj": [queries, hidden], "k_proj": [keys, hidden], "v_proj": [keys, hidden], "o_proj": [hidden, queries],
            "gate_proj": [inner, hidden], "up_proj": [inner, hidden], "down_proj": [hidden, inner],
            "gate": [config["num_experts"], hidden], "embed_tokens": [config["vocab_size"], hidden],
            "lm_head": [config["vocab_size"], hidden]}[name.rpartition(".")[2]]


def fields(config, name, form):
    """The key-value pairs of the architecture; file_type: the type of most matrices."""
    arch = "qwen3moe"
    return {"general.architecture": arch, "general.name": name, 
            "general.file_type": FILE_TYPES[form],
            f"{arch}.block_count": config["num_hidden_layers"],
            f"{arch}.context_length": config["max_position_embeddings"],
            f"{arch}.embedding_length": config["hidden_size"],
            f"{arch}.feed_forward_length": config["intermediate_size"],
            f"{arch}.attention.head_count": config["num_attention_heads"],
            f"{arch}.attention.head_count_kv": config["num_key_value_heads"],
            f"{arch}.attention.key_length": config["head_dim"],
            f"{arch}.attention.value_length": config["head_dim"],
            f"{arch}.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
            f"{arch}.rope.freq_base": float(config["rope_theta"]),
            f"{arch}.expert_count": config["num_experts"],
            f"{arch}.expert_used_count": config["num_experts_per_tok"],
            f"{arch}.expert_feed_forward_length": config["moe_intermediate_size"]}


def vocabulary(tokens, merges, control, eos):
    """The key-value pairs of a byte-level BPE vocabulary; control: ids that are not text."""
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [3 if i in control else 1 for i in range(len(tokens))],
            "tokenizer.ggml.merges": merges, "tokenizer.ggml.eos_token_id": eos, "tokenizer.ggml.add_bos_token": False}


def read_vocabulary(directory, config):
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    tokens = {i: token for token, i in tokenizer["model"]["vocab"].items()}
    control = {entry["id"]: entry["content"] for entry in tokenizer["added_tokens"]}
    tokens.update(control)
    return vocabulary([tokens[i] for i in range(config["vocab_size"])],
                      [pair if isinstance(pair, str) else " ".join(pair) for pair in tokenizer["model"]["merges"]],
                      set(control), config["eos_token_id"])


def dummy_tokens(config):
    """As many tokens as the model has; GPT-2's stand-ins for single bytes are among them."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    tokens = [chr(b) for b in plain] + [chr(256 + i) for i in range(256 - len(plain))]
    return tokens + [f"t{i}" for i in range(len(tokens), config["vocab_size"])]


class CheckpointSource:
    """Tensors of a checkpoint; form: NVFP4 or BF16, for the matrices that are NVFP4 there."""

    def __init__(self, directory, form):
        self.file, self.form = SafetensorsFile(directory / "model.safetensors"), form

    def matrix(self, names):
        """(type, pieces, floats of whole matrices or None) of the matrices stacked."""
        if names[0] + ".weight_scale" not in self.file:
            return "BF16", lambda: (self.file.bytes(name + ".weight", "BF16") for name in names), None
        parts = [(self.file.bytes(name + ".weight", "U8"), self.file.bytes(name + ".weight_scale", "F8_E4M3"),
                  self.file.float(name + ".weight_scale_2")) for name in names]
        if self.form == "BF16":
            return "BF16", lambda: (nvfp4_forms.bf16_values(*part) for part in parts), None
        return "NVFP4", lambda: (nvfp4_forms.ggml_blocks(*part[:2]) for part in parts), [part[2] for part in parts]

    def float32(self, name):
        data = self.file.bytes(name + ".weight", "BF16")
        out = bytearray(2 * len(data))
        out[2::4], out[3::4] = data[::2], data[1::2]
        return lambda: [bytes(out)]


class DummySource:
    """Made-up tensors; form: of the layers' matrices, head: of the output's, table: of the embeddings'."""

    def __init__(self, config, form, head, table):
        self.config, self.weights = config, DummyWeights()
        self.form, self.other = form, {"lm_head": head, "model.embed_tokens": table}

    def matrix(self, names):
        kind = self.other.get(names[0], self.form)
        count = gguf_file.tensor_bytes(kind, [len(names), *matrix_shape(self.config, names[0])])
        return kind, lambda: self.weights.pieces(kind, count), None

    def float32(self, name):
        if name.endswith("norm"):
            size = self.config["head_dim" if name.endswith(("q_norm", "k_norm")) else "hidden_size"]
            return lambda: [struct.pack("<f", 1.0) * size]
        return lambda: self.weights.pieces("F32", gguf_file.tensor_bytes("F32", matrix_shape(self.config, name)))


def tensors(config, source):
    """All tensors of the model, as gguf_file.write takes them."""
    out = []

    def matrix(to, names, stacked=False):
        kind, pieces, whole = source.matrix(names)
        shape = matrix_shape(config, names[0])
        out.append((to + ".weight", kind, [len(names), *shape] if stacked else shape, pieces))
        if whole:
            out.append((to + ".scale", "F32", [len(whole)], lambda: [struct.pack(f"<{len(whole)}f", *whole)]))

    matrix("token_embd", ["model.embed_tokens"])
    if not config["tie_word_embeddings"]:
        matrix("output", ["lm_head"])
    out.append(("output_norm.weight", "F32", [config["hidden_size"]], source.float32("model.norm")))
    for i in range(config["num_hidden_layers"]):
        layer, to = f"model.layers.{i}.", f"blk.{i}."
        for name, new in NORMS:
            size = config["head_dim" if name.startswith("self_attn") else "hidden_size"]
            out.append((f"{to}{new}.weight", "F32", [size], source.float32(layer + name)))
        for name, new in ATTENTION:
            matrix(to + new, [layer + name])
        router = layer + "mlp.gate"
        out.append((to + "ffn_gate_inp.weight", "F32", matrix_shape(config, router), source.float32(router)))
        for name, new in EXPERTS:
            matrix(to + new, [f"{layer}mlp.experts.{e}.{name}" for e in range(config["num_experts"])], stacked=True)
    return out


def read_config(directory):
    return json.loads((pathlib.Path(directory) / "config.json").read_text())


def write_checkpoint(directory, form, path):
    """The checkpoint in `directory` as a GGUF file at `path`."""
    config = read_config(directory)
    gguf_file.write(path, fields(config, directory.name, form) | read_vocabulary(directory, config),
                    tensors(config, CheckpointSource(directory, form)))


def write_dummy(config, form, path, head="BF16", table="BF16"):
    """A model of config's shapes with random weights as a GGUF file at `path`."""
    tokens = dummy_tokens(config)
    eos = config["eos_token_id"]
    gguf_file.write(path, fields(config, "dummy", form) | vocabulary(tokens, ["t 1"], {eos}, eos),
                    tensors(config, DummySource(config, form, head, table)))

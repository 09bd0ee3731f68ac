"""Hugging Face directories for servers that know no NVFP4 on a CPU: a checkpoint in BF16, or shapes alone."""

import json
import shutil
import struct

import nvfp4_forms
from gguf_models import dummy_tokens, read_config
from safetensors_file import SafetensorsFile


def bf16_tensors(file):
    """{name: (shape, bytes)} of all tensors of a checkpoint, its NVFP4 matrices multiplied out."""
    out = {}
    for name, entry in file.entries.items():
        base = name.removesuffix(".weight")
        if name == "__metadata__" or not name.endswith(".weight"):
            continue
        if base + ".weight_scale" in file:
            rows, columns = entry["shape"]
            data = nvfp4_forms.bf16_values(file.bytes(name, "U8"), file.bytes(base + ".weight_scale", "F8_E4M3"),
                                           file.float(base + ".weight_scale_2"))
            out[name] = [rows, 2 * columns], data
        else:
            out[name] = entry["shape"], file.bytes(name, "BF16")
    return out


def write_safetensors(path, tensors):
    """tensors: {name: (shape, bytes of BF16)}."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, data in tensors.values():
            file.write(data)


def write_bf16(directory, out):
    """The checkpoint in `directory` with BF16 weights, in the new directory `out`."""
    out.mkdir(parents=True)
    config = read_config(directory)
    del config["quantization_config"]
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(directory / name, out / name)
    write_safetensors(out / "model.safetensors", bf16_tensors(SafetensorsFile(directory / "model.safetensors")))
    (out / "config.json").write_text(json.dumps(config, indent=2))


def write_shapes(config, out):
    """config.json and a made-up tokenizer of as many tokens, in the new directory `out`."""
    out.mkdir(parents=True)
    vocabulary = {token: i for i, token in enumerate(dummy_tokens(config))}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                 "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
                 "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                           "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocabulary,
                           "merges": []}}
    (out / "tokenizer.json").write_text(json.dumps(tokenizer))
    (out / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    (out / "config.json").write_text(json.dumps(config, indent=2))

"""Quantises a BF16 Hugging Face checkpoint to NVFP4 (W4A16) in ModelOpt's layout: the reference for `tessera quantize`.

    python3 quantize_reference.py IN_DIR OUT_DIR

Every `*_proj.weight` (Mixtral: `w1`, `w2`, `w3`) becomes `.weight` (uint8, two E2M1 codes a byte, the even element in the low nibble),
`.weight_scale` (E4M3, one for each 16 elements of a row) and `.weight_scale_2` (one float32). gate and up of an
expert share weight_scale_2, and so do q, k and v of a layer. All arithmetic is float32, in this order:

    weight_scale_2 = amax / (6 * 448)
    weight_scale   = e4m3(clamp(block_amax / (6 * weight_scale_2), 2^-9, 448)); 1 for a block of zeros
    code           = e2m1(w / (weight_scale * weight_scale_2)), to nearest, ties to the even code
"""

import json
import pathlib
import re
import shutil
import sys

import numpy as np
import safetensors.torch
import torch

BLOCK = 16
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
# Halfway points between neighbouring values; a tie goes to the even code, so up from code 1, 3 and 5.
MIDDLE = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], np.float32)
SHARED = [("gate_proj", "up_proj"), ("q_proj", "k_proj", "v_proj"), ("w1", "w3")]


def encode_e2m1(x):
    magnitude = np.abs(x)
    code = np.zeros(x.shape, np.uint8)
    for i, middle in enumerate(MIDDLE):
        code += (magnitude >= middle) if i % 2 else (magnitude > middle)
    return code | (np.signbit(x).astype(np.uint8) << 3)


def to_e4m3(x):
    return torch.from_numpy(x).to(torch.float8_e4m3fn)


def quantize(weight, amax):
    """weight: float32 [out, in]; amax: the largest magnitude of the weights that share weight_scale_2."""
    scale_2 = np.float32(amax) / np.float32(6 * 448)
    blocks = weight.reshape(weight.shape[0], -1, BLOCK)
    block_amax = np.abs(blocks).max(-1)
    wanted = np.clip(block_amax / (np.float32(6) * scale_2), np.float32(2.0**-9), np.float32(448))
    wanted = np.where(block_amax == 0, np.float32(1), wanted)
    scale = to_e4m3(wanted)
    step = scale.float().numpy() * scale_2
    code = encode_e2m1(blocks / step[..., None]).reshape(weight.shape)
    packed = code[:, 0::2] | (code[:, 1::2] << 4)
    return torch.from_numpy(packed), scale, torch.tensor(scale_2, dtype=torch.float32)


def dequantize(packed, scale, scale_2):
    """The float32 weight that a quantised tensor stands for."""
    packed = packed.numpy()
    code = np.stack((packed & 15, packed >> 4), -1).reshape(packed.shape[0], -1)
    value = E2M1[code & 7] * np.where(code & 8, np.float32(-1), np.float32(1))
    step = scale.float().numpy() * np.float32(scale_2)
    return (value.reshape(value.shape[0], -1, BLOCK) * step[..., None]).reshape(value.shape)


def dequantize_mxfp4(blocks, scales):
    """The float32 weights [..., out, in] that blocks [..., out, in / 32, 16] and E8M0 scales stand for."""
    packed = blocks.numpy()
    code = np.stack((packed & 15, packed >> 4), -1).reshape(*packed.shape[:-1], -1)
    value = E2M1[code & 7] * np.where(code & 8, np.float32(-1), np.float32(1))
    value = value * np.exp2(scales.numpy().astype(np.float32) - 127)[..., None]
    return torch.from_numpy(value.reshape(*value.shape[:-2], -1))


def group_of(name):
    """The names of the weights that share a tensor scale with this one."""
    for group in SHARED:
        for part in group:
            if f".{part}." in name:
                return [name.replace(f".{part}.", f".{other}.") for other in group]
    return [name]


def quantization_config(ignore):
    return {
        "config_groups": {"group_0": {
            "input_activations": None,
            "targets": ["Linear"],
            "weights": {"dynamic": False, "group_size": BLOCK, "num_bits": 4, "type": "float"},
        }},
        "ignore": ignore,
        "kv_cache_scheme": None,
        "producer": {"name": "tessera", "version": "0.1.0"},
        "quant_algo": "W4A16_NVFP4",
        "quant_method": "modelopt",
    }


def load_tensors(folder):
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors.update(safetensors.torch.load_file(path))
    return tensors


def main():
    source, target = map(pathlib.Path, sys.argv[1:3])
    target.mkdir(parents=True, exist_ok=True)
    tensors = load_tensors(source)
    out = {}
    for name, tensor in tensors.items():
        if not re.search(r"(_proj|\.w[123])\.weight$", name):
            out[name] = tensor
            continue
        group = [n for n in group_of(name) if n in tensors]
        amax = max(tensors[n].float().abs().max().item() for n in group)
        packed, scale, scale_2 = quantize(tensor.float().numpy(), amax)
        out[name] = packed
        out[name + "_scale"] = scale
        out[name + "_scale_2"] = scale_2
    safetensors.torch.save_file(out, target / "model.safetensors", metadata={"format": "pt"})

    config = json.loads((source / "config.json").read_text())
    ignore = sorted(["lm_head", *(f"model.layers.{n}.mlp.gate" for n in range(config["num_hidden_layers"]))])
    config["quantization_config"] = quantization_config(ignore)
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    hf_quant_config = {
        "producer": {"name": "tessera", "version": "0.1.0"},
        "quantization": {"quant_algo": "W4A16_NVFP4", "group_size": BLOCK, "kv_cache_quant_algo": None,
                         "exclude_modules": ignore},
    }
    (target / "hf_quant_config.json").write_text(json.dumps(hf_quant_config, indent=2) + "\n")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if (source / name).exists() and source != target:
            shutil.copy(source / name, target / name)


if __name__ == "__main__":
    main()

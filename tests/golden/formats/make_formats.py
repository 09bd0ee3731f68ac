#!/usr/bin/env python3
"""Small matrices in every format and layout that checkpoints use, and the values that they stand for.

Needs torch, transformers, compressed-tensors and safetensors. Writes formats.safetensors beside this file: the tensors
as a checkpoint names them, and NAME.expected, F32 [out, in] or [experts, out, in].

  ct, ct_mxfp4       written and read back by the compressed-tensors library
  llama4_*           ModelOpt's stacked experts: [E, in / 2, out], gate and up one after the other
  stacked_*          the same by rows, a tensor scale for each expert
  gpt_oss_*          MXFP4 blocks, gate and up interleaved; values from transformers' own dequantiser
  dense_*            stacked BF16, by columns and interleaved (gpt-oss), by rows (transformers 5)
  fp8_*              scales for blocks of 128 x 128, rows, and the tensor; computed in double precision
"""
import pathlib

import numpy as np
import torch
from compressed_tensors.compressors.mxfp4.base import MXFP4PackedCompressor
from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import preset_name_to_scheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from safetensors.torch import save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def unpack(packed):
    packed = packed.numpy()
    return E2M1[np.stack((packed & 15, packed >> 4), -1).reshape(*packed.shape[:-1], -1)]


def to_float32(values):
    return torch.from_numpy(np.ascontiguousarray(values).astype(np.float32))


def by_compressed_tensors(out, name, preset, compressor, rows, columns, group):
    scheme = preset_name_to_scheme(preset, targets=["Linear"])
    weight = torch.randn(rows, columns) * 0.05
    blocks = weight.reshape(rows, -1, group)
    low, high = blocks.amin(-1), blocks.amax(-1)
    global_scale = generate_gparam(weight.min(), weight.max()) if group == 16 else None
    scale, _ = calculate_qparams(low, high, scheme.weights, global_scale=global_scale)
    state = {"weight": weight, "weight_scale": scale}
    if global_scale is not None:
        state["weight_global_scale"] = global_scale
    packed = compressor.compress(state, scheme)
    for key, value in packed.items():
        out[f"{name}.{key}"] = value.contiguous()
    if global_scale is not None:
        out[f"{name}.input_global_scale"] = torch.tensor([2688.0 / 3.5])
    codes = unpack_fp4_from_uint8(packed["weight_packed"], rows, columns, dtype=torch.float32)
    out[f"{name}.expected"] = dequantize(
        x_q=codes, scale=compressor._decompress_scale(packed["weight_scale"], torch.float32), args=scheme.weights,
        global_scale=packed.get("weight_global_scale"), dtype=torch.float32)


def random_nvfp4(*shape):
    """Codes [..., in / 2], scales [..., in / 16]."""
    codes = torch.randint(0, 256, (*shape[:-1], shape[-1] // 2), dtype=torch.uint8)
    scales = torch.randint(0, 0x7F, (*shape[:-1], shape[-1] // 16), dtype=torch.uint8)
    return codes, scales.view(torch.float8_e4m3fn)


def nvfp4_values(codes, scales, tensor_scale):
    scales = np.repeat(scales.to(torch.float32).numpy().astype(np.float64), 16, -1)
    return unpack(codes) * scales * np.asarray(tensor_scale, np.float32).astype(np.float64)


def random_fp8(*shape):
    codes = torch.randint(0, 256, shape, dtype=torch.uint8)
    codes[(codes & 0x7F) == 0x7F] = 0
    return codes.view(torch.float8_e4m3fn)


def fp8_values(weight, scale, block):
    grown = scale.to(torch.float32).numpy().astype(np.float64)
    for axis in (-2, -1):
        grown = np.repeat(grown, block[axis], axis)
    rows, columns = weight.shape[-2:]
    return weight.to(torch.float32).numpy().astype(np.float64) * grown[..., :rows, :columns]


def main():
    torch.manual_seed(0)
    out = {}
    by_compressed_tensors(out, "ct", "NVFP4A16", NVFP4PackedCompressor, 24, 64, 16)
    by_compressed_tensors(out, "ct_mxfp4", "MXFP4A16", MXFP4PackedCompressor, 8, 64, 32)

    experts, inter, hidden = 3, 16, 32
    codes, scales = random_nvfp4(experts, 2 * inter, hidden)
    scale_2 = np.float32(0.00123)
    out["llama4_gate_up"] = codes.transpose(1, 2).contiguous()
    out["llama4_gate_up_weight_scale"] = scales.view(torch.uint8).transpose(1, 2).contiguous().view(torch.float8_e4m3fn)
    out["llama4_gate_up_weight_scale_2"] = torch.tensor(scale_2)
    out["llama4_gate_up_input_scale"] = torch.tensor(0.25)
    out["llama4.expected"] = to_float32(nvfp4_values(codes, scales, scale_2))

    codes, scales = random_nvfp4(experts, 2 * inter, hidden)
    scale_2 = np.array([0.5, 0.00077, 0.003], np.float32)
    out["stacked_gate_up"] = codes
    out["stacked_gate_up_weight_scale"] = scales
    out["stacked_gate_up_weight_scale_2"] = torch.from_numpy(scale_2)
    out["stacked.expected"] = to_float32(nvfp4_values(codes, scales, scale_2[:, None, None]))

    blocks = torch.randint(0, 256, (experts, 2 * inter, 2, 16), dtype=torch.uint8)
    exponents = torch.randint(100, 130, (experts, 2 * inter, 2), dtype=torch.uint8)
    out["gpt_oss_gate_up_blocks"] = blocks
    out["gpt_oss_gate_up_scales"] = exponents
    values = convert_moe_packed_tensors(blocks, exponents, dtype=torch.float32)  # [E, in, out]
    out["gpt_oss.expected"] = values.transpose(1, 2).contiguous()

    dense = (torch.randn(experts, 2 * inter, hidden) * 0.05).to(torch.bfloat16)
    out["dense_by_columns"] = dense.transpose(1, 2).contiguous()
    out["dense_by_rows"] = dense
    out["dense.expected"] = dense.to(torch.float32)
    out["dense_bias"] = torch.randn(experts, 2 * inter).to(torch.bfloat16)

    weight = random_fp8(136, 160)
    scale = torch.rand(2, 2) + 0.01
    out["fp8_blocks.weight"] = weight
    out["fp8_blocks.weight_scale_inv"] = scale
    out["fp8_blocks.expected"] = to_float32(fp8_values(weight, scale, (128, 128)))
    weight = random_fp8(2, 136, 48)  # gate: rows 0 to 67; up: rows 68 to 135, in two blocks
    scale = torch.rand(2, 2, 1).to(torch.bfloat16)
    out["fp8_stacked"] = weight
    out["fp8_stacked_weight_scale_inv"] = scale
    out["fp8_stacked.expected"] = to_float32(fp8_values(weight, scale, (128, 128)))
    weight = random_fp8(12, 40)
    for name, scale, block in (("fp8_tensor", torch.tensor(0.0123), (12, 40)), ("fp8_rows", torch.rand(12, 1), (1, 40)),
                               ("fp8_e8m0", torch.tensor([[120]], dtype=torch.uint8).view(torch.float8_e8m0fnu),
                                (128, 128))):
        out[f"{name}.weight"] = weight.clone()
        out[f"{name}.weight_scale" if name != "fp8_e8m0" else f"{name}.scale"] = scale
        out[f"{name}.expected"] = to_float32(fp8_values(weight, scale.to(torch.float32).reshape(-1, 1), block))

    path = pathlib.Path(__file__).parent / "formats.safetensors"
    save_file(out, path)
    print(f"{path}: {len(out)} tensors, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Golden vectors of the NVFP4 codec, from torch's float8_e4m3fn and ModelOpt's formulae.

Needs torch and numpy. Writes tests/golden/nvfp4/codec.txt (text, hexadecimal float bits, one item a line):

  e4m3_decode CODE BITS            value of each E4M3FN code
  e4m3_encode BITS CODE            torch's rounding of floats: every midpoint between neighbours, its two
                                   float neighbours, and random values, magnitudes up to 448
  e2m1_encode BITS CODE            nearest of the eight magnitudes, ties to the even code, likewise
  block TENSOR_SCALE_BITS SCALE CODES(16 hex digits, element 0 first) BITS x 16
                                   one block of a quantised random tensor

Formulae: NVIDIA ModelOpt, modelopt/torch/quantization/qtensor/nvfp4_tensor.py (float32 arithmetic).
"""
import pathlib

import numpy as np
import torch

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=np.float32)


def bits(x):
    return f"{np.float32(x).view(np.uint32):08x}"


def e2m1_encode(x):
    """Nearest magnitude by brute force in double; at equal distance the even code."""
    distance = np.abs(np.abs(x).astype(np.float64)[..., None] - E2M1.astype(np.float64))
    nearest = distance.min(-1, keepdims=True)
    candidates = distance == nearest
    first = candidates.argmax(-1)
    last = 7 - candidates[..., ::-1].argmax(-1)
    code = np.where(first % 2 == 0, first, last)
    return (code + 8 * np.signbit(x)).astype(np.uint8)


def around(values):
    """The values and their float neighbours, of both signs."""
    values = np.asarray(values, dtype=np.float32)
    all_values = np.concatenate([values, np.nextafter(values, np.float32(np.inf)),
                                 np.nextafter(values, np.float32(-np.inf))])
    return np.concatenate([all_values, -all_values])


def main():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    lines = []

    codes = np.arange(256, dtype=np.uint8)
    decoded = torch.from_numpy(codes).view(torch.float8_e4m3fn).to(torch.float32).numpy()
    lines += [f"e4m3_decode {c:02x} {bits(v)}" for c, v in zip(codes, decoded) if not np.isnan(v)]

    finite = decoded[:127]
    midpoints = (finite[1:].astype(np.float64) + finite[:-1]) / 2
    values = np.concatenate([around(midpoints), around(finite), rng.uniform(-448, 448, 300).astype(np.float32),
                             (rng.standard_normal(300) * 0.02).astype(np.float32)])
    values = values[np.abs(values) <= 448]  # torch does not saturate, ModelOpt clamps first
    encoded = torch.from_numpy(values).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    lines += [f"e4m3_encode {bits(v)} {c:02x}" for v, c in zip(values, encoded)]

    midpoints = (E2M1[1:] + E2M1[:-1]) / 2
    values = np.concatenate([around(midpoints), around(E2M1), rng.uniform(-8, 8, 300).astype(np.float32)])
    lines += [f"e2m1_encode {bits(v)} {c:x}" for v, c in zip(values, e2m1_encode(values))]

    for scale in [1.0, 0.02, 3e-6]:
        w = torch.randn(8, 64) * scale
        w[3, 16:32] = 0
        w[4, 0:16] *= 1e-5  # block scale at its lower clamp
        blocks = w.reshape(-1, 16)
        tensor_scale = w.abs().amax() / (6.0 * 448.0)
        block_scale = blocks.abs().amax(-1) / (6.0 * tensor_scale)
        block_scale[block_scale == 0] = 1.0
        block_scale = block_scale.clamp(2.0**-9, 448.0).to(torch.float8_e4m3fn)
        quotient = blocks / (block_scale.to(torch.float32) * tensor_scale)[:, None]
        block_codes = e2m1_encode(quotient.numpy())
        for b in range(blocks.shape[0]):
            lines.append("block " + bits(tensor_scale.item()) + f" {block_scale.view(torch.uint8)[b].item():02x} "
                         + "".join(f"{c:x}" for c in block_codes[b]) + " "
                         + " ".join(bits(v) for v in blocks[b].numpy()))

    out = pathlib.Path(__file__).parent / "nvfp4" / "codec.txt"
    out.parent.mkdir(exist_ok=True)
    out.write_text("\n".join(lines) + "\n")
    print(f"{out}: {len(lines)} lines")


if __name__ == "__main__":
    main()

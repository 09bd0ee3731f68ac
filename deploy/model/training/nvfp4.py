"""NVFP4 weights in torch: E2M1 elements, an E4M3 scale for each 16 along the input, a float32 scale for a tensor.

ModelOpt's conventions: weight_scale_2 = amax / (6 * 448), weight_scale = e4m3(block_amax / (6 * weight_scale_2)),
value = e2m1 * weight_scale * weight_scale_2. Training uses `fake_quantize`; the checkpoint is written by
`tessera quantize`, which must agree with it.
"""

import torch

BLOCK = 16


def round_e2m1(x):
    """Rounds |x| <= 6 to the nearest E2M1 value, ties to the even code (0 .5 1 1.5 2 3 4 6)."""
    a = x.abs().clamp(max=6.0)
    small = torch.round(a * 2) / 2  # steps of 0.5 up to 2, torch.round goes to even
    middle = torch.round(a)  # steps of 1 up to 4
    large = torch.round(a / 2) * 2  # steps of 2 up to 6
    return torch.where(a < 2, small, torch.where(a < 4, middle, large)).copysign(x)


def quantize_dequantize(weight, scale_2):
    """weight: float32 [..., out, in]; scale_2: float32, broadcast over [..., out, in / 16]."""
    blocks = weight.unflatten(-1, (-1, BLOCK))
    amax = blocks.abs().amax(-1)
    scale = (amax / (6.0 * scale_2)).clamp(2.0**-9, 448.0).to(torch.float8_e4m3fn).float()
    scale = torch.where(amax == 0, torch.ones_like(scale), scale)
    step = (scale * scale_2).unsqueeze(-1)
    return (round_e2m1(blocks / step) * step).flatten(-2)


def round_to_bf16(x):
    """float32 values rounded to BF16 (nearest, ties to even), as float32.

    By integer arithmetic, because torch.compile drops a cast to BF16 that is followed by a cast back.
    """
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).view(torch.float32)


def fake_quantize(weight, dims, amount):
    """Forward: the weight, moved to its NVFP4 value where `amount` is 1. Backward: the identity (straight through).

    dims: the dimensions that share one tensor scale. amount: a scalar tensor, 0 or 1; or None for the weight as it
    is. The NVFP4 value is that of
    the BF16-rounded weight, so that quantising the BF16 checkpoint gives exactly what was trained.
    """
    if amount is None:
        return weight
    with torch.no_grad():
        rounded = round_to_bf16(weight)
        scale_2 = rounded.abs().amax(dims, keepdim=True) / (6.0 * 448.0)
        delta = (quantize_dequantize(rounded, scale_2) - weight) * amount
    return weight + delta

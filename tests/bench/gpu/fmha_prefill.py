"""Attention of prompts over the paged cache on a Hopper GPU, beside torch's causal SDPA over unpaged keys.

  python3 tests/bench/gpu/fmha_prefill.py --lib build/libtessera_bench_gpu.so [--quick] [--json FILE]

"same bits": whether FmhaDecode gives the same for each token.
"""
import argparse
import math

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import gpu_bench as gb

# New tokens, keys, query and KV heads, head dimension.
SHAPES = ((1024, 1024, 32, 4, 128), (2048, 2048, 32, 4, 128), (4096, 4096, 32, 4, 128), (8192, 8192, 32, 4, 128),
          (32768, 32768, 32, 4, 128), (8192, 8192, 32, 32, 128), (2048, 32768, 32, 4, 128), (8192, 8192, 64, 8, 64),
          (8192, 8192, 16, 2, 256))
QUICK = ((1024, 1024, 32, 4, 128), (8192, 8192, 32, 4, 128), (2048, 32768, 32, 4, 128), (8192, 8192, 64, 8, 64),
         (8192, 8192, 16, 2, 256))
DECODE_TOKENS = 512  # of a launch


class Prompt:
    def __init__(self, lib, tokens, length, query_heads, kv_heads, head_dim, block_size=64):
        self.lib, self.tokens, self.length, self.heads, self.head_dim = lib, tokens, length, (query_heads, kv_heads), head_dim
        self.block_size, self.blocks = block_size, math.ceil(length / block_size)
        new = lambda *shape: torch.randn(*shape, dtype=torch.bfloat16, device='cuda')
        self.k, self.v = (new(self.blocks, kv_heads, block_size, head_dim) for _ in range(2))
        self.q = new(tokens, query_heads, head_dim)
        self.out = torch.empty_like(self.q)
        self.table = torch.randperm(self.blocks).to(torch.int32).cuda()
        self.chunks = torch.tensor([0, tokens, length, 0], dtype=torch.int32, device='cuda')
        self.workspace = torch.zeros(lib.tessera_fmha_prefill_workspace(head_dim), dtype=torch.uint8, device='cuda')
        self.scale = head_dim ** -0.5

    def prefill(self):
        gb.check(self.lib.tessera_fmha_prefill(
            self.q.data_ptr(), self.out.data_ptr(), self.k.data_ptr(), self.v.data_ptr(), self.table.data_ptr(),
            self.chunks.data_ptr(), 1, self.tokens, *self.heads, self.head_dim, self.blocks, self.block_size, self.blocks, 0,
            self.scale, self.workspace.data_ptr(), gb.stream()))
        return self.out

    def decode(self, first):
        """The attention of tokens `first` on, as single tokens."""
        count = min(DECODE_TOKENS, self.tokens - first)
        rows = torch.zeros(count, dtype=torch.int32, device='cuda')
        firsts = torch.arange(count, dtype=torch.int32, device='cuda')
        lengths = firsts + (self.length - self.tokens + first + 1)
        out = torch.empty_like(self.q[:count])
        size = self.lib.tessera_fmha_decode_workspace(count, 1, *self.heads, self.head_dim)
        workspace = torch.zeros(size, dtype=torch.uint8, device='cuda')
        gb.check(self.lib.tessera_fmha_runs(
            self.q[first:].data_ptr(), out.data_ptr(), self.k.data_ptr(), self.v.data_ptr(), self.table.data_ptr(),
            rows.data_ptr(), firsts.data_ptr(), lengths.data_ptr(), count, 1, *self.heads, self.head_dim, self.blocks,
            self.block_size, self.blocks, self.scale, workspace.data_ptr(), gb.stream()))
        torch.cuda.synchronize()
        return out

    def same_bits(self):
        """Of the first tokens, of those in the middle and of the last."""
        got = self.prefill().clone()
        firsts = {0, max(0, self.tokens // 2 - 100), max(0, self.tokens - DECODE_TOKENS)}
        return all(torch.equal(got[first:first + DECODE_TOKENS], self.decode(first)) for first in firsts)

    def dense(self):
        gather = lambda cache: cache[self.table.long()].transpose(0, 1).reshape(self.heads[1], -1, self.head_dim)[None, :, :self.length].contiguous()
        return self.q.transpose(0, 1)[None].contiguous(), gather(self.k), gather(self.v)


def fastest_sdpa(prompt):
    """Microseconds, name and result of torch's fastest, for a whole prompt."""
    best, name, want = math.inf, 'none', None
    if prompt.tokens != prompt.length:
        return best, name, want
    q, k, v = prompt.dense()
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
        try:
            with sdpa_kernel(backend):
                call = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=prompt.scale, enable_gqa=True)
                want = call()[0].transpose(0, 1)
                us = gb.time_graph([call], replays=10)
            if us < best:
                best, name = us, backend.name
        except RuntimeError:
            pass
    return best, name, want


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--lib', required=True)
    parser.add_argument('--quick', action='store_true')
    parser.add_argument('--json')
    args = parser.parse_args()
    lib = gb.load(args.lib)
    torch.manual_seed(3)
    peak = gb.bf16_peak()
    print(f'{torch.cuda.get_device_name()}  bf16 {peak:.0f} TFLOP/s')
    print(f'{"tokens":>7} {"keys":>6} {"heads":>6} {"d":>4} {"us":>9} {"TFLOP/s":>8} {"of peak":>8} {"SDPA us":>9} {"ratio":>6}'
          f' {"rel err":>8} same bits')
    rows = []
    for tokens, length, hq, hkv, d in QUICK if args.quick else SHAPES:
        prompt = Prompt(lib, tokens, length, hq, hkv, d)
        same = prompt.same_bits()
        got = prompt.prefill().clone()
        us = gb.time_graph([prompt.prefill], replays=10)
        best, name, want = fastest_sdpa(prompt)
        error = ((got.float() - want.float()).norm() / want.float().norm()).item() if want is not None else math.nan
        start = length - tokens
        products = 4 * hq * d * tokens * (start + (tokens + 1) / 2)
        tflops = products / us / 1e6
        print(f'{tokens:>7} {length:>6} {f"{hq}/{hkv}":>6} {d:>4} {us:>9.1f} {tflops:>8.1f} {tflops / peak:>8.1%} {best:>9.1f}'
              f' {best / us:>6.2f} {error:>8.1e} {same}', flush=True)
        row = dict(bench='fmha_prefill', shape=f'{tokens} of {length} {hq}/{hkv} d{d}', dtype='bf16', us=round(us, 2),
                   tflops=round(tflops, 1), ceiling_tflops=round(peak), fraction=round(tflops / peak, 4), same_bits=same)
        if want is not None:
            row |= dict(peer=f'torch SDPA {name}, unpaged, causal', peer_us=round(best, 2), rel_error=error)
        rows.append(row)
    gb.append_json(args.json, rows)


if __name__ == '__main__':
    main()

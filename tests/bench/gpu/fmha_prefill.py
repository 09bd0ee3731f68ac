"""Attention of a whole prompt over the paged cache on a Hopper GPU, beside torch's causal SDPA over unpaged keys.

  python3 tests/bench/gpu/fmha_prefill.py --lib build/libtessera_bench_gpu.so [--json FILE]

As the server does it: aligned runs of tokens, at most 512 tokens a launch. One token at a time is timed beside it.
"""
import argparse
import math

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import gpu_bench as gb

LAUNCH_TOKENS = 512


class Prompt:
    def __init__(self, lib, length, query_heads, kv_heads, head_dim, block_size=64):
        self.lib, self.length, self.heads, self.head_dim, self.block_size = lib, length, (query_heads, kv_heads), head_dim, block_size
        self.blocks = math.ceil(length / block_size)
        new = lambda *shape: torch.randn(*shape, dtype=torch.bfloat16, device='cuda')
        self.k, self.v = (new(self.blocks, kv_heads, block_size, head_dim) for _ in range(2))
        self.q = new(length, query_heads, head_dim)
        self.out = torch.empty_like(self.q)
        self.table = torch.randperm(self.blocks).to(torch.int32).cuda()
        self.scale = head_dim ** -0.5
        self.arrays, self.workspaces = {}, {}

    def attend(self, run):
        """Leaves the attention of every token in self.out, in runs of `run` tokens."""
        if run not in self.arrays:
            firsts = torch.arange(0, self.length, run, dtype=torch.int32, device='cuda')
            self.arrays[run] = firsts, firsts + run, torch.zeros_like(firsts)
            size = self.lib.tessera_fmha_decode_workspace(LAUNCH_TOKENS // run, run, *self.heads, self.head_dim)
            self.workspaces[run] = torch.zeros(size, dtype=torch.uint8, device='cuda')
        firsts, lengths, rows = self.arrays[run]
        most = LAUNCH_TOKENS // run
        for at in range(0, len(firsts), most):
            gb.check(self.lib.tessera_fmha_runs(
                self.q.data_ptr(), self.out.data_ptr(), self.k.data_ptr(), self.v.data_ptr(), self.table.data_ptr(),
                rows[at:].data_ptr(), firsts[at:].data_ptr(), lengths[at:].data_ptr(), min(most, len(firsts) - at), run,
                *self.heads, self.head_dim, self.blocks, self.block_size, self.blocks, self.scale,
                self.workspaces[run].data_ptr(), gb.stream()))
        return self.out

    def dense(self):
        gather = lambda cache: cache[self.table.long()].transpose(0, 1).reshape(self.heads[1], -1, self.head_dim)[None, :, :self.length].contiguous()
        return self.q.transpose(0, 1)[None].contiguous(), gather(self.k), gather(self.v)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--lib', required=True)
    parser.add_argument('--json')
    args = parser.parse_args()
    lib = gb.load(args.lib)
    torch.manual_seed(3)
    peak = gb.bf16_peak()
    print(f'{torch.cuda.get_device_name()}  bf16 {peak:.0f} TFLOP/s')
    print(f'{"length":>7} {"heads":>7} {"d":>4} {"run":>4} {"us":>9} {"TFLOP/s":>8} {"of peak":>8} {"singly us":>10}'
          f' {"SDPA us":>9} {"ratio":>6} {"rel err":>8} same bits')
    rows = []
    for length, hq, hkv, d in ((1024, 32, 4, 128), (2048, 32, 4, 128), (8192, 32, 4, 128), (8192, 64, 8, 64), (8192, 16, 2, 256)):
        prompt = Prompt(lib, length, hq, hkv, d)
        run = lib.tessera_fmha_run_length(hq, hkv, d)
        singly = prompt.attend(1).clone()
        got = prompt.attend(run).clone()
        same = torch.equal(singly, got)
        us = gb.time_graph([lambda: prompt.attend(run)], replays=10)
        single_us = gb.time_graph([lambda: prompt.attend(1)], replays=5)
        q, k, v = prompt.dense()
        best, name, want = math.inf, 'none', None
        for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
            try:
                with sdpa_kernel(backend):
                    call = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=prompt.scale, enable_gqa=True)
                    want = call()
                    t = gb.time_graph([call], replays=10)
                if t < best:
                    best, name = t, backend.name
            except RuntimeError:
                pass
        error = ((got.float() - want[0].transpose(0, 1).float()).norm() / want.float().norm()).item()
        tflops = 4 * (length * (length + 1) / 2) * hq * d / us / 1e6
        print(f'{length:>7} {f"{hq}/{hkv}":>7} {d:>4} {run:>4} {us:>9.1f} {tflops:>8.1f} {tflops / peak:>8.1%} {single_us:>10.1f}'
              f' {best:>9.1f} {best / us:>6.2f} {error:>8.1e} {same}', flush=True)
        rows.append(dict(bench='fmha_prefill', shape=f'{length} {hq}/{hkv} d{d} runs of {run}', dtype='bf16', us=round(us, 2),
                         tflops=round(tflops, 1), ceiling_tflops=round(peak), fraction=round(tflops / peak, 4),
                         singly_us=round(single_us, 2), same_bits=same, peer=f'torch SDPA {name}, unpaged, causal',
                         peer_us=round(best, 2), rel_error=error))
    gb.append_json(args.json, rows)


if __name__ == '__main__':
    main()

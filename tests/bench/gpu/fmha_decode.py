"""FMHA decode on a Hopper GPU beside torch's SDPA, with the read bandwidth measured in the same run.

  python3 tests/bench/gpu/fmha_decode.py --lib build/libtessera_bench_gpu.so [--json FILE]

Times are medians of CUDA graph replays, inputs rotated so that the L2 cache holds none of them.
"""
import argparse
import math

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import gpu_bench as gb


class Problem:
    def __init__(self, lib, batch, length, query_heads, kv_heads, head_dim, block_size, copies, shared):
        self.lib, self.batch, self.length, self.heads = lib, batch, length, (query_heads, kv_heads)
        self.head_dim, self.block_size = head_dim, block_size
        blocks_each = math.ceil(length / block_size)
        self.num_blocks = batch * blocks_each
        self.stride = blocks_each
        self.scale = head_dim ** -0.5
        self.bytes = 2 * batch * length * kv_heads * head_dim * 2
        self.inputs = []
        for _ in range(copies):
            k = torch.randn(self.num_blocks, kv_heads, block_size, head_dim, dtype=torch.bfloat16, device='cuda')
            v = torch.randn_like(k)
            q = torch.randn(batch, 1, query_heads, head_dim, dtype=torch.bfloat16, device='cuda')
            table = torch.randperm(self.num_blocks).to(torch.int32).view(batch, blocks_each).cuda()
            self.inputs.append((q, k, v, table, torch.empty_like(q)))
        self.lengths = torch.full((batch,), length, dtype=torch.int32, device='cuda')
        self.workspace = shared

    def ours(self, index):
        q, k, v, table, out = self.inputs[index]
        gb.check(self.lib.tessera_fmha_decode(
            q.data_ptr(), out.data_ptr(), k.data_ptr(), v.data_ptr(), table.data_ptr(), self.lengths.data_ptr(),
            self.batch, 1, *self.heads, self.head_dim, self.num_blocks, self.block_size, self.stride, 0, self.scale,
            self.workspace.data_ptr(), gb.stream()))
        return out

    def contiguous(self, index):
        """The same keys and values unpaged, [batch, kv_heads, length, head_dim], as SDPA wants them."""
        q, k, v, table, _ = self.inputs[index]
        def gather(cache):
            flat = cache.index_select(0, table.long().flatten())
            flat = flat.view(self.batch, self.stride, self.heads[1], self.block_size, self.head_dim)
            return flat.transpose(1, 2).reshape(self.batch, self.heads[1], -1,
                                                self.head_dim)[:, :, :self.length].contiguous()
        return q.transpose(1, 2).contiguous(), gather(k), gather(v)


def sdpa(q, k, v, scale):
    return F.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--lib', required=True)
    parser.add_argument('--json')
    parser.add_argument('--quick', action='store_true')
    parser.add_argument('--shape', type=int, nargs=6, metavar=('BATCH', 'LENGTH', 'HQ', 'HKV', 'D', 'BLOCK'),
                        help='one shape instead of the tables')
    args = parser.parse_args()
    lib = gb.load(args.lib)
    torch.manual_seed(1)
    ceiling = gb.read_bandwidth()
    print(f'{torch.cuda.get_device_name()}  read bandwidth {ceiling:.0f} GB/s')
    print(f'{"batch x length":>16} {"heads":>7} {"d":>4} {"block":>5} {"us":>9} {"GB/s":>6} {"of ceiling":>10}'
          f' {"SDPA us":>9} {"ratio":>6} {"rel err":>8}')
    named = [(64, 8192, 64, 8, 128), (64, 8192, 32, 4, 128), (1, 65536, 32, 4, 128), (64, 4096, 64, 8, 64),
             (1, 1024, 32, 8, 128)]
    grid = [(b, n, *h) for b in (1, 8, 64, 256) for n in (512, 4096, 32768)
            for h in ((64, 8, 128), (32, 4, 128), (64, 8, 64), (16, 2, 256))]
    shapes = [(s, block) for s in named for block in (64, 16)] + ([] if args.quick else [(s, 64) for s in grid])
    if args.shape:
        shapes = [(tuple(args.shape[:5]), args.shape[5])]
    rows = []
    for (batch, length, hq, hkv, d), block in shapes:
        bytes_each = 2 * batch * length * hkv * d * 2
        if bytes_each > 16 << 30:
            continue
        copies = max(2, min(24, math.ceil(4 * gb.L2_BYTES / bytes_each)))
        workspace = torch.zeros(lib.tessera_fmha_decode_workspace(batch, 1, hq, hkv, d), dtype=torch.uint8,
                                device='cuda')
        problem = Problem(lib, batch, length, hq, hkv, d, block, copies, workspace)
        dense = [problem.contiguous(i) for i in range(copies)]
        us = gb.time_graph([lambda i=i: problem.ours(i) for i in range(copies)])
        best, name = math.inf, 'none'
        for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
            try:
                with sdpa_kernel(backend):
                    t = gb.time_graph([lambda i=i: sdpa(*dense[i], problem.scale) for i in range(copies)])
                if t < best:
                    best, name = t, backend.name
            except RuntimeError:
                pass
        b = min(batch, 4)  # a reference in float64
        q, k, v = (x[:b].double() for x in dense[0])
        k, v = (x.repeat_interleave(hq // hkv, dim=1) for x in (k, v))
        want = torch.softmax(q @ k.transpose(2, 3) * problem.scale, -1) @ v
        got = problem.ours(0)[:b].transpose(1, 2).double()
        error = ((got - want).norm() / want.norm()).item()
        gbps = bytes_each / us / 1e3
        print(f'{f"{batch} x {length}":>16} {f"{hq}/{hkv}":>7} {d:>4} {block:>5} {us:>9.1f} {gbps:>6.0f}'
              f' {gbps / ceiling:>10.1%} {best:>9.1f} {best / us:>6.2f} {error:>8.1e}', flush=True)
        rows.append(dict(bench='fmha_decode', shape=f'{batch}x{length} {hq}/{hkv} d{d} block{block}', dtype='bf16',
                         us=round(us, 2), gbps=round(gbps), ceiling=round(ceiling), fraction=round(gbps / ceiling, 4),
                         peer=f'torch SDPA {name}, unpaged', peer_us=round(best, 2), rel_error=error))
        del problem, dense, workspace, k, v, q, want, got
        torch.cuda.empty_cache()
    gb.append_json(args.json, rows)


if __name__ == '__main__':
    main()

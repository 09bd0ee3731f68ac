"""FMHA decode on a Hopper GPU beside torch's SDPA, with the read bandwidth measured in the same run.

  python3 tests/bench/gpu/fmha_decode.py --lib build/libtessera_bench_gpu.so [--quick] [--json FILE]

Times are medians of CUDA graph replays, inputs rotated so that the L2 cache holds none of them. Bytes are those of the keys
and values alone, each counted once: MLA's one matrix, one byte an element for e4m3, the listed keys for a list of slots.
SDPA reads unpaged bf16; where it has no kernel (MLA's and e4m3's bytes) there is no peer.
"""
import argparse
import collections
import math

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import gpu_bench as gb

# `kind`: bf16, e4m3; 'listed' gathers keys from a list of slots, in random order.
Shape = collections.namedtuple('Shape', 'batch length hq hkv d block kind', defaults=(64, 'bf16'))

QUICK = [Shape(64, 8192, 64, 8, 128), Shape(64, 8192, 32, 4, 128, 16), Shape(1, 65536, 32, 4, 128),
         Shape(64, 4096, 64, 8, 64), Shape(1, 1024, 32, 8, 128), Shape(1, 512, 64, 8, 128), Shape(64, 512, 64, 8, 128),
         Shape(256, 512, 64, 8, 64), Shape(8, 4096, 16, 2, 256), Shape(64, 4096, 16, 1, 512),
         Shape(64, 8192, 16, 1, 576), Shape(64, 4096, 128, 1, 576), Shape(64, 8192, 64, 8, 128, 64, 'e4m3'),
         Shape(64, 8192, 16, 1, 576, 64, 'e4m3'), Shape(64, 2048, 16, 1, 576, 64, 'listed')]

NAMED = [Shape(*s, block) for s in ((64, 8192, 64, 8, 128), (64, 8192, 32, 4, 128), (1, 65536, 32, 4, 128),
                                    (64, 4096, 64, 8, 64), (1, 1024, 32, 8, 128)) for block in (64, 16)]
GRID = [Shape(b, n, *h) for b in (1, 8, 64, 256) for n in (512, 4096, 32768)
        for h in ((64, 8, 128), (32, 4, 128), (64, 8, 64), (16, 2, 256), (16, 1, 512))]
SPECIAL = [Shape(b, n, hq, 1, 576) for b, n in ((1, 4096), (8, 4096), (64, 4096), (128, 8192)) for hq in (16, 128)] + \
          [Shape(64, n, *h, 64, 'e4m3') for n in (512, 8192) for h in ((64, 8, 128), (64, 8, 64), (16, 2, 256), (16, 1, 576))] + \
          [Shape(b, 2048, hq, hkv, d, 64, 'listed') for b in (1, 64) for hq, hkv, d in ((16, 1, 576), (128, 1, 576), (32, 4, 128))]


class Problem:
    def __init__(self, lib, shape, copies):
        self.lib, self.shape = lib, shape
        self.v_dim = 512 if shape.d == 576 else shape.d
        self.blocks_each = math.ceil(shape.length / shape.block)
        self.num_blocks = shape.batch * self.blocks_each
        self.scale = shape.d ** -0.5
        size = (self.num_blocks, shape.hkv, shape.block, shape.d)
        dtype = torch.float8_e4m3fn if shape.kind == 'e4m3' else torch.bfloat16
        self.inputs = []
        for _ in range(copies):
            k = torch.randn(size, dtype=torch.bfloat16, device='cuda').to(dtype)
            v = k if shape.d == 576 else torch.randn(size, dtype=torch.bfloat16, device='cuda').to(dtype)
            q = torch.randn(shape.batch, 1, shape.hq, shape.d, dtype=torch.bfloat16, device='cuda')
            out = torch.empty(shape.batch, 1, shape.hq, self.v_dim, dtype=torch.bfloat16, device='cuda')
            table = torch.randperm(self.num_blocks, device='cuda').to(torch.int32).view(shape.batch, self.blocks_each)
            slots = None
            if shape.kind == 'listed':
                slots = table.long().unsqueeze(2) * shape.block + torch.arange(shape.block, device='cuda')
                slots = slots.view(shape.batch, -1)[:, torch.randperm(shape.length, device='cuda')].int().contiguous()
            self.inputs.append((q, k, v, table, out, slots))
        self.lengths = torch.full((shape.batch,), shape.length, dtype=torch.int32, device='cuda')
        self.workspace = torch.zeros(lib.tessera_fmha_decode_workspace(shape.batch, 1, shape.hq, shape.hkv, self.v_dim),
                                     dtype=torch.uint8, device='cuda')

    def ours(self, index):
        s = self.shape
        q, k, v, table, out, slots = self.inputs[index]
        gb.check(self.lib.tessera_fmha_decode(
            q.data_ptr(), out.data_ptr(), k.data_ptr(), 0 if s.d == 576 else v.data_ptr(), table.data_ptr(),
            self.lengths.data_ptr(), s.batch, 1, s.hq, s.hkv, s.d, self.v_dim, s.kind == 'e4m3', self.num_blocks,
            s.block, self.blocks_each, 0 if slots is None else slots.data_ptr(), s.length, self.scale,
            self.workspace.data_ptr(), gb.stream()))
        return out

    def contiguous(self, index, sequences=None):
        """The same keys and values unpaged, [batch, kv_heads, length, dim], in bf16, as SDPA wants them."""
        s = self.shape
        n = sequences or s.batch
        q, k, v, table, *_ = self.inputs[index]

        def gather(cache):
            flat = cache.view(torch.uint8).view(self.num_blocks, -1).index_select(0, table[:n].long().flatten())
            flat = flat.view(cache.dtype).view(n, self.blocks_each, s.hkv, s.block, s.d)
            return flat.transpose(1, 2).reshape(n, s.hkv, -1, s.d)[:, :, :s.length].to(torch.bfloat16).contiguous()
        k = gather(k)
        return q[:n].transpose(1, 2).contiguous(), k, k[..., :512] if s.d == 576 else gather(v)


def sdpa_time(problem, copies):
    """The faster of torch's kernels, microseconds and name."""
    best, name = math.inf, 'none'
    if problem.shape.kind != 'bf16' or problem.shape.d == 576:
        return best, name
    dense = [problem.contiguous(i) for i in range(copies)]

    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, scale=problem.scale, enable_gqa=True)
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
        try:
            with sdpa_kernel(backend):
                t = gb.time_graph([lambda i=i: attend(*dense[i]) for i in range(copies)])
            if t < best:
                best, name = t, backend.name
        except RuntimeError:
            pass
    return best, name


def relative_error(problem):
    """Of the first sequences, against float64."""
    n = min(problem.shape.batch, 4)
    q, k, v = (x.double() for x in problem.contiguous(0, n))
    group = problem.shape.hq // problem.shape.hkv
    q = q.view(n, problem.shape.hkv, group, -1)
    want = torch.softmax(q @ k.transpose(2, 3) * problem.scale, -1) @ v
    got = problem.ours(0)[:n, 0].double().view(want.shape)
    return ((got - want).norm() / want.norm()).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--lib', required=True)
    parser.add_argument('--json')
    parser.add_argument('--quick', action='store_true', help='15 shapes of all kinds')
    parser.add_argument('--shape', nargs=7, metavar=('BATCH', 'LENGTH', 'HQ', 'HKV', 'D', 'BLOCK', 'KIND'),
                        help='one shape instead of the tables; KIND is bf16, e4m3 or listed')
    args = parser.parse_args()
    lib = gb.load(args.lib)
    torch.manual_seed(1)
    ceiling = gb.read_bandwidth()
    print(f'{torch.cuda.get_device_name()}  read bandwidth {ceiling:.0f} GB/s')
    print(f'{"batch x length":>16} {"heads":>7} {"d":>4} {"block":>5} {"kind":>6} {"us":>9} {"GB/s":>6} {"of ceiling":>10}'
          f' {"SDPA us":>9} {"ratio":>6} {"rel err":>8}')
    shapes = QUICK if args.quick else NAMED + GRID + SPECIAL
    if args.shape:
        shapes = [Shape(*map(int, args.shape[:6]), args.shape[6])]
    rows = []
    for shape in shapes:
        element = 1 if shape.kind == 'e4m3' else 2
        bytes_each = shape.batch * shape.length * shape.hkv * shape.d * element * (1 if shape.d == 576 else 2)
        if bytes_each > 16 << 30:
            continue
        copies = max(2, min(24, math.ceil(4 * gb.L2_BYTES / bytes_each)))
        problem = Problem(lib, shape, copies)
        us = gb.time_graph([lambda i=i: problem.ours(i) for i in range(copies)])
        best, name = sdpa_time(problem, copies)
        error = relative_error(problem)
        gbps = bytes_each / us / 1e3
        ours = f'{f"{shape.batch} x {shape.length}":>16} {f"{shape.hq}/{shape.hkv}":>7} {shape.d:>4} {shape.block:>5}' \
               f' {shape.kind:>6} {us:>9.1f} {gbps:>6.0f} {gbps / ceiling:>10.1%}'
        peer = f'{best:>9.1f} {best / us:>6.2f}' if best < math.inf else f'{"-":>9} {"-":>6}'
        print(ours, peer, f'{error:>8.1e}', flush=True)
        row = dict(bench='fmha_decode', dtype=shape.kind,
                   shape=f'{shape.batch}x{shape.length} {shape.hq}/{shape.hkv} d{shape.d} block{shape.block}',
                   us=round(us, 2), gbps=round(gbps), ceiling=round(ceiling), fraction=round(gbps / ceiling, 4),
                   rel_error=error)
        if best < math.inf:
            row |= dict(peer=f'torch SDPA {name}, unpaged', peer_us=round(best, 2))
        rows.append(row)
        del problem
        torch.cuda.empty_cache()
    gb.append_json(args.json, rows)


if __name__ == '__main__':
    main()

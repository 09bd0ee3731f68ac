"""NVFP4 grouped GEMM (mixture of experts) on a Hopper GPU: weight bytes a second, TFLOP/s, fraction of the ceilings.

  python3 tests/bench/gpu/grouped_gemm.py --lib build/libtessera_bench_gpu.so [--model NAME] [--tokens N ...] [--quick]
      [--json FILE]

Activations lie in the order of the steps where the server would have them so; around that number of tokens both ways are
timed. --quick takes a few rows of each kind.

Prompts ("steps") have their rows gathered first, which is in their time. The peer is torch's BF16 matrix product over the same experts' dequantised weights, one call an expert (what is at hand
everywhere); its time is for comparison of the work, not of 4-bit kernels.
"""
import argparse
import math

import torch

import gpu_bench as gb

SHAPES = {  # model: hidden, expert intermediate, experts, top-k
    'Qwen3-30B-A3B': (2048, 768, 128, 8),
    'DeepSeek-V3': (7168, 2048, 256, 8),
}

TOKENS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192]
QUICK = {('Qwen3-30B-A3B', 'gate_up'): [1, 8, 16, 64, 256, 1024, 8192], ('Qwen3-30B-A3B', 'down'): [1, 16, 64, 8192],
         ('DeepSeek-V3', 'gate_up'): [1, 8192], ('DeepSeek-V3', 'down'): [8192]}


def route(tokens, experts, top_k, tile):
    """Uniform routing, sorted by expert; tiles of one expert each."""
    chosen = torch.stack([torch.randperm(experts)[:top_k] for _ in range(tokens)])
    flat = chosen.flatten()
    order = torch.argsort(flat, stable=True)
    rows = (order // top_k).to(torch.int32)
    counts = torch.bincount(flat, minlength=experts).tolist()
    tile_expert, ranges, at = [], [], 0
    for expert, count in enumerate(counts):
        for begin in range(at, at + count, tile):
            tile_expert.append(expert)
            ranges.append((begin, min(begin + tile, at + count)))
        at += count
    to = lambda x: torch.tensor(x, dtype=torch.int32, device='cuda')
    return rows.cuda(), to(tile_expert), to(ranges), to([len(tile_expert)]), counts


def make_weights(lib, n, k, experts, gate_up):
    packed_n = 2 * n if gate_up else n
    size = lib.tessera_packed_bytes(1, packed_n, k)
    data = torch.empty(experts * size, dtype=torch.uint8, device='cuda')
    codes = torch.randint(0, 256, (2, n, k // 2), dtype=torch.uint8, device='cuda')
    scales = torch.randint(40, 80, (2, n, k // 16), dtype=torch.uint8, device='cuda')
    for expert in range(experts):
        gb.check(lib.tessera_pack_nvfp4(codes[0].data_ptr(), scales[0].data_ptr(),
                                        codes[1].data_ptr() if gate_up else None,
                                        scales[1].data_ptr() if gate_up else None, n, k,
                                        data.data_ptr() + expert * size, gb.stream()))
    return data, torch.ones(experts * packed_n // 8, device='cuda'), packed_n


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--lib', required=True)
    parser.add_argument('--model', choices=SHAPES)
    parser.add_argument('--tokens', type=int, nargs='+', )
    parser.add_argument('--quick', action='store_true')
    parser.add_argument('--json')
    args = parser.parse_args()
    lib = gb.load(args.lib)
    torch.manual_seed(2)
    ceiling, peak = gb.read_bandwidth(), gb.bf16_peak()
    print(f'{torch.cuda.get_device_name()}  read {ceiling:.0f} GB/s  bf16 {peak:.0f} TFLOP/s')
    print(f'{"model":>14} {"op":>8} {"tokens":>6} {"order":>5} {"active":>6} {"tile":>4} {"us":>8} {"GB/s":>6} {"of read":>8}'
          f' {"TFLOP/s":>8} {"of peak":>8}')
    rows_out = []
    for model, (hidden, inter, experts, top_k) in SHAPES.items():
        if args.model not in (None, model):
            continue
        for op in ('gate_up', 'down'):
            gate_up = op == 'gate_up'
            n, k = (inter, hidden) if gate_up else (hidden, inter)
            sets = 1 if model.startswith('Deep') else 2
            weights = [make_weights(lib, n, k, experts, gate_up) for _ in range(sets)]
            tokens_of = args.tokens or (QUICK.get((model, op), []) if args.quick else TOKENS)
            pays = lib.tessera_step_order_pays
            for tokens, order in [(t, o) for t in tokens_of for o in (0, 1) if o == pays(t) or pays(2 * t) > pays(t // 4)]:
                slots = tokens * top_k
                tile = lib.tessera_choose_tile_slots(slots, weights[0][2], k, experts, order)
                calls, active = [], 0
                copies = max(2, min(16, math.ceil(3 * gb.L2_BYTES / (slots * n * k / 2)))) if tokens < 64 else 2
                keep = []
                for i in range(copies):
                    rows, tile_expert, ranges, num, counts = route(tokens, experts, top_k, tile)
                    active += sum(c > 0 for c in counts)
                    x = torch.randn(tokens if gate_up else slots, k, dtype=torch.bfloat16, device='cuda')
                    out = torch.empty(slots, n, dtype=torch.bfloat16 if gate_up else torch.float32, device='cuda')
                    data, sums, packed_n = weights[i % sets]
                    keep.append((rows, tile_expert, ranges, num, x, out))
                    gathers = gate_up and order
                    gathered = torch.empty(slots, k, dtype=torch.bfloat16, device='cuda') if gathers else x
                    keep.append(gathered)

                    def call(rows=rows, te=tile_expert, ra=ranges, num=num, x=x, gathered=gathered, out=out, data=data, sums=sums,
                             packed_n=packed_n, tile=tile, order=order, gathers=gathers, slots=slots):
                        if gathers:
                            gb.check(lib.tessera_gather_rows(x.data_ptr(), rows.data_ptr(), slots, k, gathered.data_ptr(),
                                                             gb.stream()))
                        gb.check(lib.tessera_grouped_gemm(
                            1, data.data_ptr(), sums.data_ptr(), packed_n, k, experts, gathered.data_ptr(),
                            rows.data_ptr() if gate_up and not gathers else None, out.data_ptr(), 2 if gate_up else 0, slots,
                            tile, te.data_ptr(), ra.data_ptr(), num.data_ptr(), te.numel(), order, gb.stream()))

                    calls.append(call)
                us = gb.time_graph(calls)
                active /= copies
                packed_n = 2 * n if gate_up else n
                bytes_moved = active * packed_n * k * 0.5625
                gbps = bytes_moved / us / 1e3
                tflops = 2 * slots * packed_n * k / us / 1e6
                print(f'{model:>14} {op:>8} {tokens:>6} {"steps" if order else "plain":>5} {active:>6.0f} {tile:>4} {us:>8.1f} {gbps:>6.0f}'
                      f' {gbps / ceiling:>8.1%} {tflops:>8.1f} {tflops / peak:>8.1%}', flush=True)
                rows_out.append(dict(bench='grouped_gemm_nvfp4', shape=f'{model} {op} {tokens} tokens', order=order, dtype='nvfp4/bf16',
                                     us=round(us, 2), gbps=round(gbps), tflops=round(tflops, 1),
                                     ceiling=round(ceiling), ceiling_tflops=round(peak),
                                     fraction=round(max(gbps / ceiling, tflops / peak), 4)))
            del weights, keep, calls
    for k in (2048, 4096):
        x = torch.randn(8192, k, dtype=torch.bfloat16, device='cuda')
        us = gb.time_graph([lambda: gb.check(lib.tessera_order_by_steps(x.data_ptr(), 8192, k, gb.stream()))] * 4)
        print(f'8192 x {k} into the order of the steps: {us:.1f} us')
    gb.append_json(args.json, rows_out)


if __name__ == '__main__':
    main()

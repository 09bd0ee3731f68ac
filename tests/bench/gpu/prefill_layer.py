"""Where the time of a prompt goes on a GPU: each launch of a layer of Qwen3-30B-A3B in NVFP4, for chunks of a prompt.

  python3 tests/bench/gpu/prefill_layer.py --lib build/libtessera_bench_gpu.so [--tokens N ...] [--prompt N] [--json FILE]

The launches are those of the server's CudaForward, by themselves and one after the other as the server enqueues them. A
chunk's attention sees half the prompt on average: it is timed as the chunk in its middle.
"""
import argparse

import torch

import gpu_bench as gb
from fmha_prefill import Prompt
from grouped_gemm import make_weights

HIDDEN, INTER, EXPERTS, TOP_K, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 2048, 768, 128, 8, 32, 4, 128, 48
QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM
STORE, ADD, SWIGLU = 0, 1, 2


class Layer:
    def __init__(self, lib, tokens, length):
        self.lib, self.tokens, self.slots = lib, tokens, tokens * TOP_K
        self.qkv_weights, self.o_weights = (make_weights(lib, n, k, 1, False) for n, k in ((QKV, HIDDEN), (HIDDEN, HEADS * HEAD_DIM)))
        self.gate_up_weights = make_weights(lib, INTER, HIDDEN, EXPERTS, True)
        self.down_weights = make_weights(lib, HIDDEN, INTER, EXPERTS, False)
        floats = lambda *shape: torch.randn(*shape, device='cuda')
        halves = lambda *shape: torch.randn(*shape, dtype=torch.bfloat16, device='cuda')
        ints = lambda count: torch.zeros(count, dtype=torch.int32, device='cuda')
        self.router_weights = (halves(EXPERTS, HIDDEN) * 0.02).view(torch.uint8), torch.ones(EXPERTS // 8, device='cuda'), EXPERTS
        self.hidden, self.norm, self.normed = floats(tokens, HIDDEN), torch.ones(HIDDEN, device='cuda'), halves(tokens, HIDDEN)
        self.qkv, self.logits = floats(tokens, QKV), floats(tokens, EXPERTS)
        self.rope = torch.randn(length, HEAD_DIM, device='cuda')
        self.positions = torch.arange(length - tokens, length, dtype=torch.int32, device='cuda')
        self.prompt = Prompt(lib, tokens, length, HEADS, KV_HEADS, HEAD_DIM, block_size=16)
        self.cache_slots = self.positions.long()
        self.head_norm = torch.ones(HEAD_DIM, device='cuda')
        self.chosen, self.slot_token, self.token_slot = (ints(self.slots) for _ in range(3))
        self.tiles, self.ranges, self.num_tiles = ints(self.slots + EXPERTS), ints(2 * (self.slots + EXPERTS)), ints(1)
        self.weights = floats(self.slots)
        self.rows, self.activated = halves(self.slots, HIDDEN * 2), halves(self.slots, INTER)  # gathered inputs, or float results
        self.steps = int(lib.tessera_step_order_pays(tokens))
        self.expert_tile = lib.tessera_choose_tile_slots(self.slots, 2 * INTER, HIDDEN, EXPERTS, self.steps)

    def launches(self):
        lib, t = self.lib, self.tokens
        run = lambda name, *a: gb.check(getattr(lib, name)(*[x.data_ptr() if isinstance(x, torch.Tensor) else x for x in a], gb.stream()))
        order = lambda x, k: (lambda: self.steps and run('tessera_order_by_steps', x, t, k))

        def linear(weights, k, x, out, epilogue, nvfp4=1):
            n = weights[2]
            tile = lib.tessera_choose_tile_slots(t, n, k, 1, self.steps)
            run('tessera_grouped_gemm', nvfp4, weights[0], weights[1], n, k, 1, x, None, out, epilogue, t, tile, None, None, None, 0,
                self.steps)

        def experts(weights, k, x, out, epilogue):
            rows = self.slot_token if epilogue == SWIGLU and not self.steps else None
            tiles = min(self.slots, self.slots // self.expert_tile + EXPERTS)
            run('tessera_grouped_gemm', 1, weights[0], weights[1], weights[2], k, EXPERTS, x, rows, out, epilogue, self.slots,
                self.expert_tile, self.tiles, self.ranges, self.num_tiles, tiles, self.steps)

        gathered = self.rows if self.steps else self.normed
        norm = lambda: run('tessera_rms_norm', self.hidden, self.norm, t, HIDDEN, self.normed)
        return {
            'norm': norm,  # of the next layer: with the combination
            'order for qkv': order(self.normed, HIDDEN),
            'qkv': lambda: linear(self.qkv_weights, HIDDEN, self.normed, self.qkv, STORE),
            'heads: norm, rotation, cache': lambda: run(
                'tessera_finish_qkv', self.qkv, self.head_norm, self.rope, self.positions, self.cache_slots, t, HEADS, KV_HEADS,
                HEAD_DIM, 16, self.prompt.q, self.prompt.k, self.prompt.v),
            'attention': self.prompt.prefill,
            'order for o': order(self.prompt.out, HEADS * HEAD_DIM),
            'o': lambda: linear(self.o_weights, HEADS * HEAD_DIM, self.prompt.out, self.hidden, ADD),
            'norm after attention': norm,
            'order for router': order(self.normed, HIDDEN),
            'router': lambda: linear(self.router_weights, HIDDEN, self.normed, self.logits, STORE, nvfp4=0),
            'route, sort': lambda: run('tessera_route', self.logits, t, EXPERTS, TOP_K, self.expert_tile, 1, self.chosen,
                                       self.weights, self.slot_token, self.token_slot, self.tiles, self.ranges, self.num_tiles),
            'gather': lambda: self.steps and run('tessera_gather_rows', self.normed, self.slot_token, self.slots, HIDDEN, self.rows),
            'gate, up': lambda: experts(self.gate_up_weights, HIDDEN, gathered, self.activated, SWIGLU),
            'down': lambda: experts(self.down_weights, INTER, self.activated, self.rows, STORE),
            'combine, norm': lambda: run('tessera_combine', self.rows, self.token_slot, self.weights, t, TOP_K, HIDDEN, 1, self.hidden,
                                         self.norm, self.normed),
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--lib', required=True)
    parser.add_argument('--tokens', type=int, nargs='+', default=[512, 1024, 2048, 8192], help='of a chunk')
    parser.add_argument('--prompt', type=int, default=8192)
    parser.add_argument('--json')
    args = parser.parse_args()
    lib = gb.load(args.lib)
    torch.manual_seed(4)
    results, rows = {}, []
    for tokens in args.tokens:
        layer = Layer(lib, tokens, (args.prompt + tokens) // 2)
        launches = layer.launches()
        for launch in launches.values():  # inputs of the later ones
            launch()
        torch.cuda.synchronize()
        times = {name: gb.time_graph([launch] * 2, replays=7) for name, launch in launches.items()
                 if layer.steps or not name.startswith(('order', 'gather'))}
        del times['norm']
        chain = [launch for name, launch in launches.items() if name != 'norm']
        times['a layer'] = gb.time_graph([lambda: [launch() for launch in chain]] * 2, replays=7)
        times[f'ms of {args.prompt} tokens, {LAYERS} layers'] = times['a layer'] * LAYERS * args.prompt / tokens / 1000
        results[tokens] = times
        rows += [dict(bench='prefill_layer', shape=f'{name}, {tokens} tokens', dtype='nvfp4/bf16', us=round(us, 2))
                 for name, us in times.items()]
        del layer, launches, chain
        torch.cuda.empty_cache()
    print(f'{torch.cuda.get_device_name()}; us a launch; chunks of a prompt of {args.prompt} tokens')
    print(f'{"tokens of a chunk":>34}' + ''.join(f'{tokens:>9}' for tokens in results))
    for name in results[args.tokens[-1]]:
        print(f'{name:>34}' + ''.join(f'{times.get(name, 0):>9.1f}' for times in results.values()), flush=True)
    gb.append_json(args.json, rows)


if __name__ == '__main__':
    main()

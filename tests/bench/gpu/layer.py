"""A decode step's layer at Qwen3-30B-A3B's shapes on a GPU: what each launch costs alone, and in its place among the others.

  python3 tests/bench/gpu/layer.py --lib build/libtessera_bench_gpu.so [--tokens N ...] [--length N] [--json FILE]

"alone" is a chain of that launch only, over the weights of several layers; "in place" the time that the layer takes more with
it than without. The last rows are the whole layer, and the output matrix.
"""
import argparse
import ctypes

import torch

import gpu_bench as gb

OPS = ['qkv', 'finish qkv', 'attention', 'o', 'norm', 'router', 'route, sort', 'gate_up', 'down', 'combine, norm', 'output matrix']
LAYER, HEAD = list(range(10)), 10
LAYERS = 6


def load(path):
    lib = gb.load(path)
    pointer, i32 = ctypes.c_void_p, ctypes.c_int32
    for name, result, arguments in (
            ('tessera_layer_create', pointer, [i32] * 3),
            ('tessera_layer_tokens', None, [pointer, i32]),
            ('tessera_layer_reset', None, [pointer]),
            ('tessera_layer_hidden', None, [pointer, pointer]),
            ('tessera_layer_launch', ctypes.c_char_p, [pointer, i32, pointer, i32, pointer])):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


def calls_of(lib, model, ops):
    array = (ctypes.c_int32 * len(ops))(*ops)
    return [lambda layer=layer: gb.check(lib.tessera_layer_launch(model, layer, array, len(ops), gb.stream()))
            for layer in range(LAYERS)]


def time_ops(lib, model, ops, repeat=1):
    """Microseconds a layer of the ops."""
    lib.tessera_layer_reset(model)
    return gb.time_graph(calls_of(lib, model, ops) * repeat)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--lib', required=True)
    parser.add_argument('--tokens', type=int, nargs='+', default=[1, 8, 64])
    parser.add_argument('--length', type=int, default=256)
    parser.add_argument('--json')
    args = parser.parse_args()
    lib = load(args.lib)
    model = lib.tessera_layer_create(max(args.tokens), args.length, LAYERS)
    rows = []
    print(f'{torch.cuda.get_device_name()}; sequences of {args.length} tokens; us a launch: alone, in place')
    for tokens in args.tokens:
        lib.tessera_layer_tokens(model, tokens)
        whole = time_ops(lib, model, LAYER)
        for op in LAYER:
            alone, without = time_ops(lib, model, [op], 3), time_ops(lib, model, [o for o in LAYER if o != op])
            print(f'{tokens:>5} tokens {OPS[op]:>16} {alone:8.2f} {whole - without:8.2f}', flush=True)
            rows.append(dict(bench='layer', shape=f'{OPS[op]}, {tokens} tokens', us=round(alone, 2),
                             in_place=round(whole - without, 2)))
        print(f'{tokens:>5} tokens {"layer":>16} {whole:8.2f}')
        rows.append(dict(bench='layer', shape=f'layer, {tokens} tokens', us=round(whole, 2)))
        head = time_ops(lib, model, [HEAD])
        print(f'{tokens:>5} tokens {OPS[HEAD]:>16} {head:8.2f}', flush=True)
        rows.append(dict(bench='layer', shape=f'{OPS[HEAD]}, {tokens} tokens', us=round(head, 2)))
    gb.append_json(args.json, rows)


if __name__ == '__main__':
    main()

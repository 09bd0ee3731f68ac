"""What a decode step does besides its matrices, on a GPU: sampling, routing, and the experts' combination with the norm.

  python3 tests/bench/gpu/step.py --lib build/libtessera_bench_gpu.so [--json FILE]

Microseconds a call, as a chain of dependent launches in a CUDA graph. "two" is the same work in a kernel each.
"""
import argparse

import torch

import gpu_bench as gb

VOCAB = 151936
# temperature, top_k, top_p, log-probabilities
SAMPLING = {'greedy': (0, 0, 1, -1), 'temperature 1': (1, 0, 1, -1), 'top_p 0.9': (0.7, 0, 0.9, -1), 'top_k 50': (1, 50, 1, -1),
            'greedy, 5 logprobs': (0, 0, 1, 5)}
HIDDEN, EXPERTS, TOP_K = 2048, 128, 8


def sampling(lib, count, temperature, top_k, top_p, logprobs):
    calls, keep = [], []
    jobs = torch.empty(lib.tessera_sample_jobs(None, count, 0, 0, 0, 0, 0), dtype=torch.uint8)
    lib.tessera_sample_jobs(jobs.data_ptr(), count, temperature, top_k, top_p, 0, logprobs)
    jobs = jobs.cuda()
    for _ in range(3):
        logits = torch.randn(count, VOCAB, device='cuda') * 3
        logits[:, 7] = 16  # a model is mostly sure
        workspace = torch.empty(lib.tessera_sample_workspace(count, VOCAB), dtype=torch.uint8, device='cuda')
        results = torch.empty(count * 256, dtype=torch.uint8, device='cuda')
        keep.append((logits, workspace, results))
        calls.append(lambda logits=logits, workspace=workspace, results=results: gb.check(lib.tessera_sample(
            logits.data_ptr(), VOCAB, count, jobs.data_ptr(), logprobs >= 0, temperature > 0 and top_k == 0,
            workspace.data_ptr(), results.data_ptr(), gb.stream())))
    return gb.time_graph(calls)


def routing(lib, tokens, at_once):
    pairs = tokens * TOP_K
    logits = torch.randn(tokens, EXPERTS, device='cuda')
    ints = [torch.empty(2 * pairs + EXPERTS, dtype=torch.int32, device='cuda') for _ in range(6)]
    weights = torch.empty(pairs, device='cuda')
    chosen, slot_token, token_slot, tile_expert, num_tiles, _ = (x.data_ptr() for x in ints)
    ranges = torch.empty(2 * (pairs + EXPERTS), dtype=torch.int32, device='cuda')
    call = lambda: gb.check(lib.tessera_route(logits.data_ptr(), tokens, EXPERTS, TOP_K, 8, at_once, chosen,
                                              weights.data_ptr(), slot_token, token_slot, tile_expert, ranges.data_ptr(),
                                              num_tiles, gb.stream()))
    return gb.time_graph([call] * 10)


def combining(lib, tokens, at_once):
    rows = torch.randn(tokens * TOP_K, HIDDEN, device='cuda')
    slots = torch.randperm(tokens * TOP_K, device='cuda', dtype=torch.int32)
    weights = torch.rand(tokens, TOP_K, device='cuda') / TOP_K
    residual, norm = torch.randn(tokens, HIDDEN, device='cuda'), torch.ones(HIDDEN, device='cuda')
    normed = torch.empty(tokens, HIDDEN, dtype=torch.bfloat16, device='cuda')
    call = lambda: gb.check(lib.tessera_combine(rows.data_ptr(), slots.data_ptr(), weights.data_ptr(), tokens, TOP_K, HIDDEN,
                                                at_once, residual.data_ptr(), norm.data_ptr(), normed.data_ptr(), gb.stream()))
    return gb.time_graph([call] * 10)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--lib', required=True)
    parser.add_argument('--json')
    args = parser.parse_args()
    lib = gb.load(args.lib)
    torch.manual_seed(2)
    rows = []

    def note(what, tokens, us):
        rows.append(dict(bench='step', shape=f'{what}, {tokens} tokens', dtype='float', us=round(us, 2)))
        return f'{us:8.1f}'

    print(f'{torch.cuda.get_device_name()}; vocabulary {VOCAB}, {EXPERTS} experts, {TOP_K} a token, hidden {HIDDEN}')
    print(f'{"tokens":>22}' + ''.join(f'{tokens:8}' for tokens in (1, 8, 64, 256)))
    for name, parameters in SAMPLING.items():
        print(f'{name:>22}' + ''.join(note(name, n, sampling(lib, n, *parameters)) for n in (1, 8, 64, 256)), flush=True)
    for name, run in (('route, sort', routing), ('combine, norm', combining)):
        for at_once in (1, 0):
            label = name if at_once else name + ', two'
            print(f'{label:>22}' + ''.join(note(label, n, run(lib, n, at_once)) for n in (1, 8, 64, 256)), flush=True)
    gb.append_json(args.json, rows)


if __name__ == '__main__':
    main()

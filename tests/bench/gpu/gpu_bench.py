"""What the GPU benchmarks share: the library, graph timing, the measured ceilings."""
import ctypes
import datetime
import json
import statistics
import subprocess
import sys

import torch

L2_BYTES = 60 << 20


def load(path):
    lib = ctypes.CDLL(path)
    pointer, i32 = ctypes.c_void_p, ctypes.c_int32
    for name, result, arguments in (
            ('tessera_fmha_decode_workspace', ctypes.c_size_t, [i32] * 5),
            ('tessera_fmha_decode', ctypes.c_char_p,
             [pointer] * 6 + [i32] * 10 + [pointer, i32, ctypes.c_float, pointer, pointer]),
            ('tessera_fmha_runs', ctypes.c_char_p, [pointer] * 8 + [i32] * 8 + [ctypes.c_float, pointer, pointer]),
            ('tessera_fmha_prefill', ctypes.c_char_p,
             [pointer] * 6 + [i32] * 9 + [ctypes.c_float, pointer, pointer]),
            ('tessera_fmha_prefill_workspace', ctypes.c_size_t, [i32]),
            ('tessera_packed_bytes', ctypes.c_size_t, [i32] * 3),
            ('tessera_pack_nvfp4', ctypes.c_char_p, [pointer] * 4 + [i32] * 2 + [pointer] * 2),
            ('tessera_grouped_gemm', ctypes.c_char_p,
             [i32, pointer, pointer, i32, i32, i32, pointer, pointer, pointer, i32, i32, i32, pointer, pointer, pointer,
              i32, i32, pointer]),
            ('tessera_choose_tile_slots', i32, [ctypes.c_int64, i32, i32, i32, i32]),
            ('tessera_step_order_pays', i32, [ctypes.c_int64]),
            ('tessera_gather_rows', ctypes.c_char_p, [pointer, pointer, ctypes.c_int64, i32, pointer, pointer]),
            ('tessera_order_by_steps', ctypes.c_char_p, [pointer, ctypes.c_int64, i32, pointer]),
            ('tessera_sample_jobs', ctypes.c_size_t, [pointer, i32, ctypes.c_float, i32] + [ctypes.c_float] * 2 + [i32]),
            ('tessera_sample_workspace', ctypes.c_size_t, [i32] * 2),
            ('tessera_sample', ctypes.c_char_p, [pointer, i32, i32, pointer, i32, i32] + [pointer] * 3),
            ('tessera_route', ctypes.c_char_p, [pointer] + [i32] * 5 + [pointer] * 8),
            ('tessera_combine', ctypes.c_char_p, [pointer] * 3 + [i32] * 4 + [pointer] * 4),
            ('tessera_rms_norm', ctypes.c_char_p, [pointer] * 2 + [i32] * 2 + [pointer] * 2),
            ('tessera_finish_qkv', ctypes.c_char_p, [pointer] * 5 + [i32] * 5 + [pointer] * 4)):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


def check(error):
    if error:
        sys.exit(error.decode())


def stream():
    return torch.cuda.current_stream().cuda_stream


def time_graph(calls, replays=20):
    """Median microseconds of one call; `calls` work on different inputs, in turn."""
    torch.cuda.synchronize()  # the inputs were made on another stream
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for call in calls:
            call()
    times = []
    for _ in range(replays):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / len(calls))
    return statistics.median(times)


def read_bandwidth():
    """GB/s of a large sum."""
    data = torch.randn(1 << 30, dtype=torch.bfloat16, device='cuda')
    out = torch.empty((), dtype=torch.float32, device='cuda')
    us = time_graph([lambda: torch.sum(data, dim=0, dtype=torch.float32, out=out)] * 3)
    return data.numel() * 2 / us / 1e3


def bf16_peak():
    """TFLOP/s of a large matrix product on random data."""
    a, b = (torch.randn(8192, 8192, dtype=torch.bfloat16, device='cuda') for _ in range(2))
    out = torch.empty_like(a)
    us = time_graph([lambda: torch.mm(a, b, out=out)] * 3)
    return 2 * 8192**3 / us / 1e6


def stamp():
    commit = subprocess.run(['git', 'rev-parse', '--short', 'HEAD'], capture_output=True, text=True).stdout.strip()
    return dict(date=str(datetime.date.today()), commit=commit, device=torch.cuda.get_device_name())


def append_json(path, rows):
    if path:
        common = stamp()
        with open(path, 'a') as file:
            for row in rows:
                file.write(json.dumps(row | common) + '\n')

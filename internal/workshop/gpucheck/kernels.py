# Kernels of PyTorch in bfloat16, at the sizes that Rates measures: causal attention by FlashAttention
# and by cuDNN, and a linear layer with and without GELU in the product. The argument is a job in JSON.
# Each line of the output is a JSON: a name, the milliseconds of forward and backward, and the FLOPs of
# forward, or a name and an error.
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"


def timed(run, patience):
    """Returns the milliseconds of a run: the median of three measurements of several runs."""

    def measure(times):
        if not CUDA:
            begin = time.perf_counter()
            for _ in range(times):
                run()
            return (time.perf_counter() - begin) / times * 1e3
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(times):
            run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / times

    measure(3)
    times = int(min(max(patience / max(measure(1), 1e-3), 1), 50))
    return statistics.median(measure(times) for _ in range(3))


def tensor(*shape):
    return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)


def both(forward, inputs, patience):
    """Returns the milliseconds of forward and of its backward."""
    y = forward()
    slope = torch.randn_like(y)
    backward = lambda: torch.autograd.grad(y, inputs, slope, retain_graph=True)
    return dict(Forward=timed(forward, patience), Backward=timed(backward, patience))


def attention(backend, shape, patience):
    b, h, t, d = shape
    q, k, v = (tensor(*shape) for _ in range(3))
    with sdpa_kernel([backend]):
        times = both(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), (q, k, v), patience)
    return dict(FLOPs=2 * b * h * t * t * d, **times)  # half of the scores are hidden


def linear(rows, dim, patience):
    x, w, b = tensor(rows, dim), tensor(4 * dim, dim), tensor(4 * dim)
    return dict(FLOPs=8 * rows * dim * dim, **both(lambda: F.linear(x, w, b), (x, w, b), patience))


def linear_gelu(rows, dim, patience):
    with torch.no_grad():  # there is no gradient of it
        x, w, b = tensor(rows, dim), tensor(4 * dim, dim), tensor(4 * dim)
        forward = timed(lambda: torch._addmm_activation(b, x, w.t(), use_gelu=True), patience)
        return dict(FLOPs=8 * rows * dim * dim, Forward=forward)


def main():
    job = json.loads(sys.argv[1])
    patience, rows, dim = job["Patience"], job["Batch"] * job["Context"], job["Dim"]
    print(json.dumps(dict(Name=f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")), flush=True)
    contests = [(f"linear fc ({rows}, {dim})", lambda: linear(rows, dim, patience)), (f"linear fc, gelu ({rows}, {dim})", lambda: linear_gelu(rows, dim, patience))]
    for name, backend in ("FlashAttention", SDPBackend.FLASH_ATTENTION), ("cuDNN", SDPBackend.CUDNN_ATTENTION):
        for shape in job["Attention"]:
            contests.append((f"attention, causal, {name} {tuple(shape)}", lambda b=backend, s=shape: attention(b, s, patience)))
    for name, run in contests:
        try:
            answer = run()
        except RuntimeError as e:
            answer = dict(Error=str(e).splitlines()[0])
        print(json.dumps(dict(Name=name, **answer)), flush=True)


main()

# What the models of this directory share. A script defines a torch.nn.Module whose forward returns
# the loss, under the names of parameters that the Go model has, and ends with serve(module, batch).
# Its argument is a job of contest.go in JSON: JOB["Variant"] is which of its variants it is to be.
import json
import math
import sys
import time

import torch

JOB = json.loads(sys.argv[1])


def load(path):
    """Reads what a file of the format safetensors has in float32."""
    with open(path, "rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        data = torch.frombuffer(bytearray(f.read()), dtype=torch.float32)
    header.pop("__metadata__", None)
    at = lambda t: data[t["data_offsets"][0] // 4 : t["data_offsets"][1] // 4].view(t["shape"])
    return {name: at(t) for name, t in header.items() if t["dtype"] == "F32"}


def floats(*shape, start=0):
    """Returns what floats of contests.go does."""
    return (ints(1024, *shape, start=start) / 512 - 1).float()


def ints(below, *shape, start=0):
    """Returns what ints of contests.go does."""
    h = torch.arange(start, start + torch.Size(shape).numel()) * 2654435761 & 0xFFFFFFFF
    h = (h ^ h >> 16) * 2246822519 & 0xFFFFFFFF
    return (h ^ h >> 13).remainder(below).view(shape)


def lower(x):
    """Returns x as the job wants it."""
    return x.bfloat16() if JOB["Half"] and x.is_floating_point() else x


def buckets(length, causal):
    """Returns the buckets of T5's relative positions, [length, length], 32 up to a distance of 128."""
    n = torch.arange(length)[:, None] - torch.arange(length)
    count = 32 if causal else 16
    side, n = (0, n.clamp(min=0)) if causal else ((n < 0) * count, n.abs())
    exact = count // 2
    far = exact + (torch.log(n.clamp(min=1) / exact) / math.log(128 / exact) * (count - exact)).long()
    return side + torch.where(n < exact, n, far.clamp(max=count - 1))


def answer(forward, backward, found):
    """For every line of the input, a number of passes, runs so many and answers."""
    torch.set_num_threads(1)
    for line in sys.stdin:
        seconds = [0, 0]
        for _ in range(int(line)):
            begin = time.perf_counter()
            y = forward()
            middle = time.perf_counter()
            grads = backward(y)
            seconds[0] += middle - begin
            seconds[1] += time.perf_counter() - middle
        print(*seconds, *found(y, grads), flush=True)


def serve(model, batch):
    """Answers for a model."""
    model.load_state_dict(load(JOB["Weights"]))
    if JOB["Half"]:
        model, batch = model.bfloat16(), [lower(x) for x in batch]

    def forward():
        model.zero_grad()
        return model(*batch)

    def found(loss, _):
        return loss.item(), torch.nn.utils.get_total_norm([p.grad.float() for p in model.parameters()]).item()

    answer(forward, torch.Tensor.backward, found)

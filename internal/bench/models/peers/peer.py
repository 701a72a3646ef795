# What the models of this directory share. A script defines a torch.nn.Module whose forward returns
# the loss, under the names of parameters that the Go model has, and ends with serve(module, batch).
# Its argument is a job of contest.go in JSON: JOB["Variant"] is which of its variants it is to be.
import json
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


def floats(*shape):
    """Returns what floats of contests.go does."""
    n = torch.Size(shape).numel()
    i = torch.arange(n, dtype=torch.int64)
    return ((i * 2654435761 >> 7) % 1024 / 512 - 1).float().view(shape)


def ints(below, *shape):
    """Returns what ints of contests.go does."""
    n = torch.Size(shape).numel()
    return (torch.arange(n) * 2654435761 >> 7).remainder(below).view(shape)


def serve(model, batch):
    """For every line of the input, a number of passes, runs so many and answers."""
    torch.set_num_threads(1)
    model.load_state_dict(load(JOB["Weights"]))
    for line in sys.stdin:
        begin = time.perf_counter()
        for _ in range(int(line)):
            model.zero_grad()
            loss = model(*batch)
            loss.backward()
        seconds = time.perf_counter() - begin
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        print(seconds, loss.item(), norm.item(), flush=True)

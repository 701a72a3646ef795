"""A rank of PyTorch with its part of the state of AdamW, which commands make whole.

The first line of standard input says who has which part, those after it are commands. Each is
answered by a line when it is done: "ok", or what is wrong.

    parts      one dist.broadcast a part, straight to where rank 0 has it
    everywhere the same, for every rank
    zero       ZeroRedundancyOptimizer.consolidate_state_dict to rank 0
    check      tells whether the result is right, and forgets it
    drop       forgets it
"""

import json
import sys

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer

job = json.loads(sys.stdin.readline())
rank, size = job["Rank"], job["Size"]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + job["Meet"], rank=rank, world_size=size)


def numbers(tensor, first, n):
    """What elements [first, first+n) of a tensor are."""
    return torch.arange(first, first + n, dtype=torch.float32) + tensor


names, shapes = {}, []  # of tensors of the state: their numbers, and shapes
parts = []  # (rank, tensor, first element, elements)
for p in job["Parts"]:
    name = (p["Param"], p["Name"])
    if name not in names:
        names[name] = len(names)
        shapes.append(p["Shape"])
    parts.append((p["Rank"], names[name], p["Offset"], p["Len"]))
mine = [numbers(t, first, n) if r == rank else None for r, t, first, n in parts]
aside = torch.empty(max(n for _, _, _, n in parts))

# The optimizer divides whole parameters among the ranks. Nobody ever touches their memory.
by_param = {}
for (param, entry), t in names.items():
    by_param.setdefault(param, {})[entry] = t
params = [torch.nn.Parameter(torch.empty(shapes[next(iter(of.values()))])) for of in by_param.values()]
entries = {p: of for p, of in zip(params, by_param.values())}
zero = ZeroRedundancyOptimizer(params, torch.optim.AdamW)
for group in zero.optim.param_groups:
    for p in group["params"]:
        zero.optim.state[p] = {e: numbers(t, 0, p.numel()).view(p.shape) for e, t in entries[p].items()}
        zero.optim.state[p]["step"] = torch.tensor(1.0)


def broadcast(everywhere):
    keep = everywhere or rank == 0
    whole = [torch.empty(shape) for shape in shapes] if keep else None
    flat = [w.view(-1) for w in whole] if keep else None
    for (owner, t, first, n), own in zip(parts, mine):
        if keep:
            buf = flat[t][first : first + n]
            if owner == rank:
                buf.copy_(own)
        else:
            buf = own if owner == rank else aside[:n]
        dist.broadcast(buf, owner)
    return whole


def check(whole):
    if whole is not None:
        for t, w in enumerate(whole):
            assert torch.equal(w.view(-1), numbers(t, 0, w.numel())), f"tensor {t} is wrong"


def consolidated():
    zero.consolidate_state_dict(0)
    if rank != 0:
        return None
    return zero._all_state_dicts


def check_zero(dicts):
    if dicts is None:
        return
    seen = 0
    for local, groups in zip(dicts, zero._partition_parameters()):
        for i, p in zip(local["param_groups"][0]["params"], groups[0]["params"]):
            for entry, t in entries[p].items():
                assert torch.equal(local["state"][i][entry].view(-1), numbers(t, 0, p.numel())), f"tensor {t} is wrong"
                seen += 1
    assert seen == len(names), f"{seen} tensors of {len(names)}"


result, checker = None, check
print("ok", flush=True)
for line in sys.stdin:
    command, answer = line.strip(), "ok"
    try:
        if command == "zero":
            result, checker = consolidated(), check_zero
        elif command in ("parts", "everywhere"):
            result, checker = broadcast(command == "everywhere"), check
        else:
            if command == "check":
                checker(result)
            result, zero._all_state_dicts = None, []
    except Exception as e:
        answer = f"{type(e).__name__}: {e}".replace("\n", " ")
    print(answer, flush=True)

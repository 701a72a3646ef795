# The GPT of train_test.go in PyTorch, sharded by FSDP2, bfloat16 with reductions in float32. Its
# argument is a job in JSON. For every line of its input, a number of steps, it runs so many and answers
# with a JSON: the seconds and the loss of each, and the most bytes of the GPU that it has used.
import json
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc, self.out = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        heads = lambda y: y.view(b, t, self.heads, -1).transpose(1, 2)
        q, k, v = map(heads, self.qkv(self.ln1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.out(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, job):
        super().__init__()
        self.exact = bool(job["Weights"])  # the loss in float32: it takes longer
        vocab, dim = job["Vocab"], job["Dim"]
        self.wte, self.wpe = nn.Embedding(vocab, dim), nn.Embedding(job["Context"], dim)
        self.blocks = nn.ModuleList(Block(dim, job["Heads"]) for _ in range(job["Layers"]))
        self.lnf, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab, bias=False)
        self.head.weight = self.wte.weight
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0, 0.02)

    def forward(self, x, y):
        h = self.wte(x) + self.wpe.weight
        for block in self.blocks:
            h = block(h)
        logits = self.head(self.lnf(h))
        return F.cross_entropy((logits.float() if self.exact else logits).flatten(0, 1), y.flatten())


def load(path):
    """Reads a file of the format safetensors that has nothing but float32."""
    with open(path, "rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        data = torch.frombuffer(bytearray(f.read()), dtype=torch.float32)
    header.pop("__metadata__", None)
    at = lambda t: data[t["data_offsets"][0] // 4 : t["data_offsets"][1] // 4].view(t["shape"])
    return {name: at(t) for name, t in header.items()}


def batch(job, step):
    """Returns the tokens and targets of a step, as batch of train_test.go does."""
    rows = []
    for row in range(step * job["Batch"], (step + 1) * job["Batch"]):
        state, token, line = row * 2654435761 % 2**32, row % 509, [row % 509]
        for _ in range(job["Context"]):
            state = (state * 1664525 + 1013904223) % 2**32
            token = (7 * token + 3 + (state >> 30)) % 509
            line.append(token)
        rows.append(line)
    return torch.tensor(rows)


def main():
    job = json.loads(sys.argv[1])
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", 0) if cuda else torch.device("cpu")
    meet = "file://" + job["Meet"]
    dist.init_process_group("nccl" if cuda else "gloo", meet, rank=0, world_size=1)
    torch.set_float32_matmul_precision("high")
    if job["CuDNN"]:
        for other in "flash", "mem_efficient", "math":
            getattr(torch.backends.cuda, f"enable_{other}_sdp")(False)
    with torch.device(device):
        model = GPT(job)
    if job["Weights"]:
        state = load(job["Weights"])
        state["head.weight"] = state["wte.weight"]
        model.load_state_dict(state)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        if job["Compile"]:
            block.compile()
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    settings = dict(lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    opt = torch.optim.AdamW(model.parameters(), fused=True, **settings)
    wait = torch.cuda.synchronize if cuda else lambda: None
    step = 0
    for line in sys.stdin:
        seconds, losses = [], []
        for _ in range(int(line)):
            rows = batch(job, step).to(device)
            wait()
            begin = time.perf_counter()
            for group in opt.param_groups:
                group["lr"] = settings["lr"] * min(1, (step + 1) / max(job["Warmup"], 1))
            loss = model(rows[:, :-1], rows[:, 1:])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
            wait()
            seconds.append(time.perf_counter() - begin)
            losses.append(loss.item())
            step += 1
        peak = torch.cuda.max_memory_reserved() if cuda else 0
        print(json.dumps(dict(Seconds=seconds, Losses=losses, Peak=peak)), flush=True)
    dist.destroy_process_group()


main()

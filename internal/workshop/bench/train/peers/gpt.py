# The model and the steps of package train in PyTorch. Its argument is a job of rank.go in JSON. For
# every line of its input, a number of steps, it runs so many and answers with the seconds that they
# took and the loss before the last of them.
import json
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc, self.out = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        qkv = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.out(F.gelu(self.fc(self.ln2(x))))


class GPT(nn.Module):
    def __init__(self, vocab, context, layers, dim, heads):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, dim), nn.Embedding(context, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.lnf, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab, bias=False)

    def forward(self, x, y):
        h = self.wte(x) + self.wpe.weight
        for block in self.blocks:
            h = block(h)
        logits = self.head(self.lnf(h))
        return F.cross_entropy(logits.flatten(0, 1).float(), y.flatten())


def load(path):
    """Reads a file of the format safetensors that has nothing but float32."""
    with open(path, "rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        data = torch.frombuffer(bytearray(f.read()), dtype=torch.float32)
    header.pop("__metadata__", None)
    at = lambda t: data[t["data_offsets"][0] // 4 : t["data_offsets"][1] // 4].view(t["shape"])
    return {name: at(t) for name, t in header.items()}


def rows(job):
    """Returns this process's rows of the batch: tokens and targets."""
    n = job["Batch"] // job["Processes"]
    first, count = n * job["Process"] * job["Context"], n * job["Context"]
    token = lambda i: ((i * 2654435761) >> 7) % job["Vocab"]
    tokens = torch.tensor([token(i) for i in range(first, first + count + 1)])
    return tokens[:-1].view(n, -1), tokens[1:].view(n, -1)


def shard(job, model):
    if job["Processes"] == 1:
        return model
    if job["NoShard"]:
        return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    mesh = init_device_mesh("cpu", (job["Processes"],))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main():
    job = json.loads(sys.argv[1])
    torch.set_num_threads(job["Threads"])
    if job["Processes"] > 1:
        meet = "file://" + job["Meet"] + "/gloo"
        dist.init_process_group("gloo", meet, rank=job["Process"], world_size=job["Processes"])
    model = GPT(job["Vocab"], job["Context"], job["Layers"], job["Dim"], job["Heads"])
    model.load_state_dict(load(job["Weights"]))
    if job["Precision"] == "bfloat16":
        model.to(torch.bfloat16)
    model = shard(job, model)
    if job["Compile"]:
        model = torch.compile(model)
    settings = dict(lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    opt = torch.optim.AdamW(model.parameters(), fused=True, **settings)
    tokens, targets = rows(job)
    loss = torch.zeros(())
    for line in sys.stdin:
        begin = time.perf_counter()
        for _ in range(int(line)):
            with torch.autocast("cpu", torch.bfloat16, enabled=job["Precision"] == "autocast"):
                loss = model(tokens, targets)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
        print(time.perf_counter() - begin, loss.item(), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


main()

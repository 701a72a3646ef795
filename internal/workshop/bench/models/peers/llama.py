import torch
import torch.nn as nn
import torch.nn.functional as F

from peer import JOB, ints, load, lower, serve

LAYERS, BATCH, LENGTH, VOCAB, HEAD = 2, 4, 128, 256, 64


class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Joined(nn.Module):
    """Linear layers of one input in one product."""

    def __init__(self, dim, *widths):
        super().__init__()
        self.widths, self.weight = widths, nn.Parameter(torch.empty(sum(widths), dim))

    def forward(self, x):
        return F.linear(x, self.weight).split(self.widths, -1)


class Apart(nn.Module):
    """The same with a product for each, as transformers has it."""

    def __init__(self, dim, *widths):
        super().__init__()
        self.widths, self.parts = widths, nn.ParameterList(torch.empty(width, dim) for width in widths)

    def _load_from_state_dict(self, state, prefix, *rest):
        for i, part in enumerate(state.pop(prefix + "weight").split(self.widths)):
            state[f"{prefix}parts.{i}"] = part

    def forward(self, x):
        return [F.linear(x, w) for w in self.parts]


Several = {"joined": Joined, "apart": Apart}[JOB["Variant"]]
angles = torch.outer(torch.arange(LENGTH), 10000 ** (-torch.arange(0, HEAD, 2) / HEAD)).repeat(1, 2)
COS, SIN = lower(angles.cos()), lower(angles.sin())


def rotate(x):
    u, v = x.chunk(2, -1)
    return x * COS + torch.cat((-v, u), -1) * SIN


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv, self.proj = Several(dim, dim, dim // 2, dim // 2), nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        q, k, v = (y.view(BATCH, LENGTH, -1, HEAD).transpose(1, 2) for y in self.qkv(x))
        y = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True, enable_gqa=True)
        return self.proj(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.fc, self.out = Several(dim, hidden, hidden), nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        gate, up = self.fc(x)
        return self.out(F.silu(gate) * up)


class Layer(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.attn_norm, self.mlp_norm = Norm(dim), Norm(dim)
        self.attn, self.mlp = Attention(dim), MLP(dim, hidden)

    def forward(self, x):
        x = x + self.attn(self.attn_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Llama(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.layers = nn.ModuleList(Layer(dim, hidden) for _ in range(LAYERS))
        self.norm, self.head = Norm(dim), nn.Linear(dim, VOCAB, bias=False)

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


batch = (ints(VOCAB, BATCH, LENGTH), ints(VOCAB, BATCH, LENGTH))
serve(Llama(*load(JOB["Weights"])["layers.0.mlp.out.weight"].shape), batch)

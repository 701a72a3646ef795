# T5 v1.1. Variant: "written out" has no scaled_dot_product_attention, as transformers.
import torch
import torch.nn as nn
import torch.nn.functional as F

from peer import JOB, buckets, ints, serve

LAYERS, BATCH, LENGTH, VOCAB, DIM, HEADS, HIDDEN = 2, 4, 128, 256, 512, 8, 1024


class Positions(nn.Module):
    def __init__(self, causal):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(32, HEADS))
        self.buckets = buckets(LENGTH, causal)
        self.hidden = torch.full((LENGTH, LENGTH), float("-inf")).triu(1) if causal else torch.zeros(())

    def forward(self):
        bias = F.embedding(self.buckets, self.weight).permute(2, 0, 1)
        return bias + self.hidden.to(bias.dtype)


class Attention(nn.Module):
    def __init__(self, cross):
        super().__init__()
        self.cross = cross
        linear = lambda out: nn.Linear(DIM, out, bias=False)
        if cross:
            self.q, self.k, self.v = linear(DIM), linear(DIM), linear(DIM)
        else:
            self.qkv = linear(3 * DIM)
        self.proj = linear(DIM)

    def forward(self, x, y, bias):
        three = (self.q(x), self.k(y), self.v(y)) if self.cross else self.qkv(x).chunk(3, -1)
        q, k, v = (z.unflatten(-1, (HEADS, -1)).transpose(1, 2) for z in three)
        if JOB["Variant"]:
            scores = q @ k.transpose(2, 3)
            z = (scores if bias is None else scores + bias).softmax(-1) @ v
        else:
            z = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1)
        return self.proj(z.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.out = nn.Linear(DIM, 2 * HIDDEN, bias=False), nn.Linear(HIDDEN, DIM, bias=False)

    def forward(self, x):
        gate, up = self.fc(x).chunk(2, -1)
        return self.out(F.gelu(gate, approximate="tanh") * up)


class Layer(nn.Module):
    def __init__(self, decoder):
        super().__init__()
        self.attn_norm, self.mlp_norm = nn.RMSNorm(DIM, 1e-6), nn.RMSNorm(DIM, 1e-6)
        self.attn, self.mlp = Attention(False), MLP()
        if decoder:
            self.cross_norm, self.cross = nn.RMSNorm(DIM, 1e-6), Attention(True)

    def forward(self, x, y, bias):
        x = x + self.attn(self.attn_norm(x), None, bias)
        if y is not None:
            x = x + self.cross(self.cross_norm(x), y, None)
        return x + self.mlp(self.mlp_norm(x))


class Stack(nn.Module):
    def __init__(self, decoder):
        super().__init__()
        self.positions, self.norm = Positions(decoder), nn.RMSNorm(DIM, 1e-6)
        self.layers = nn.ModuleList(Layer(decoder) for _ in range(LAYERS))

    def forward(self, x, y=None):
        bias = self.positions()
        for layer in self.layers:
            x = layer(x, y, bias)
        return self.norm(x)


class T5(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, DIM), nn.Linear(DIM, VOCAB, bias=False)
        self.encoder, self.decoder = Stack(False), Stack(True)

    def forward(self, source, tokens, targets):
        x = self.decoder(self.embed(tokens), self.encoder(self.embed(source)))
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


serve(T5(), (ints(VOCAB, BATCH, LENGTH),) * 3)

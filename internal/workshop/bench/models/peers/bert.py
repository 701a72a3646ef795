import torch
import torch.nn as nn
import torch.nn.functional as F

from peer import ints, serve

LAYERS, BATCH, LENGTH, VOCAB, DIM, HEADS = 2, 4, 128, 256, 512, 8


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x, mask):
        q, k, v = (y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.proj(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.out = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        return self.out(F.gelu(self.fc(x)))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn_norm, self.mlp_norm = nn.LayerNorm(DIM, 1e-12), nn.LayerNorm(DIM, 1e-12)
        self.attn, self.mlp = Attention(), MLP()

    def forward(self, x, mask):
        x = self.attn_norm(x + self.attn(x, mask))
        return self.mlp_norm(x + self.mlp(x))


class BERT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.kinds, self.positions = nn.Embedding(VOCAB, DIM), nn.Embedding(2, DIM), nn.Embedding(LENGTH, DIM)
        self.embed_norm, self.layers = nn.LayerNorm(DIM, 1e-12), nn.ModuleList(Layer() for _ in range(LAYERS))
        self.transform = nn.ModuleDict({"fc": nn.Linear(DIM, DIM), "norm": nn.LayerNorm(DIM, 1e-12)})
        self.head = nn.ParameterDict({"bias": nn.Parameter(torch.empty(VOCAB))})

    def forward(self, tokens, kinds, mask, targets):
        x = self.embed_norm(self.embed(tokens) + self.kinds(kinds) + self.positions.weight)
        for layer in self.layers:
            x = layer(x, mask[:, None, None].bool())
        x = self.transform["norm"](F.gelu(self.transform["fc"](x)))
        logits = F.linear(x, self.embed.weight, self.head["bias"])
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
serve(BERT(), (ints(VOCAB, BATCH, LENGTH), ints(2, BATCH, LENGTH), mask, ints(VOCAB, BATCH, LENGTH)))

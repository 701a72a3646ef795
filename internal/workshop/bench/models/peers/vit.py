import torch
import torch.nn as nn
import torch.nn.functional as F

from peer import floats, ints, serve

LAYERS, IMAGES, PIXELS, PATCH, DIM, HEADS, CLASSES = 2, 8, 64, 8, 256, 4, 10


class Patches(nn.Conv2d):
    def __init__(self):
        super().__init__(3, DIM, PATCH, PATCH)
        self.register_parameter("class", nn.Parameter(torch.empty(1, 1, DIM)))
        self.positions = nn.Parameter(torch.empty(1, 1 + (PIXELS // PATCH) ** 2, DIM))

    def forward(self, images):
        x = super().forward(images).flatten(2).transpose(1, 2)
        return torch.cat((getattr(self, "class").expand(IMAGES, -1, -1), x), 1) + self.positions


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


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

    def forward(self, x):
        x = x + self.attn(self.attn_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches, self.layers = Patches(), nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(DIM, 1e-12), nn.Linear(DIM, CLASSES)

    def forward(self, images, targets):
        x = self.patches(images)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x[:, 0])), targets)


serve(ViT(), (floats(IMAGES, 3, PIXELS, PIXELS), ints(CLASSES, IMAGES)))

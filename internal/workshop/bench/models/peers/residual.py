# The net residual of conv.go. Variant: "channels last" has images and filters as [B, H, W, C].
import torch
import torch.nn as nn
import torch.nn.functional as F

from peer import JOB, floats, ints, serve


class Layer(nn.Conv2d):
    def __init__(self, channels):
        super().__init__(channels, 64, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(64)

    def forward(self, x):
        return self.norm(super().forward(x))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.first, self.second = Layer(3), Layer(64), Layer(64)
        self.head = nn.Linear(64, 10, bias=False)

    def forward(self, x, y):
        x = F.relu(self.stem(x))
        x = F.relu(x + self.second(F.relu(self.first(x))))
        return F.cross_entropy(self.head(x.mean((2, 3))), y)


model, images = Residual(), floats(8, 3, 32, 32)
if JOB["Variant"]:
    model, images = model.to(memory_format=torch.channels_last), images.to(memory_format=torch.channels_last)
serve(model, (images, ints(10, 8)))

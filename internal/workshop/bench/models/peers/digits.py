# The net digits of conv.go. Variant: "channels last" has images and filters as [B, H, W, C].
import torch
import torch.nn as nn
import torch.nn.functional as F

from peer import JOB, floats, ints, serve


class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv0 = nn.Conv2d(1, 32, 3, padding=1, bias=False)
        self.conv1 = nn.Conv2d(32, 64, 3, padding=1, bias=False)
        self.fc, self.head = nn.Linear(64 * 49, 128), nn.Linear(128, 10, bias=False)

    def forward(self, x, y):
        x = F.max_pool2d(F.relu(self.conv0(x)), 2)
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.relu(self.fc(x.flatten(1)))
        return F.cross_entropy(self.head(x), y)


model, images = Digits(), floats(32, 1, 28, 28)
if JOB["Variant"]:
    model, images = model.to(memory_format=torch.channels_last), images.to(memory_format=torch.channels_last)
serve(model, (images, ints(10, 32)))

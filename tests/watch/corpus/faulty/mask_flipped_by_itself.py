# Source: an issue of torchvision: the mask is not flipped with its image (with its rule)
# Trap: 06.1

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def random_flip(t):
    return t.flip(-1) if random.random() < 0.5 else t


class Blobs(Dataset):
    def __init__(self, n=96):
        g = torch.Generator().manual_seed(0)
        self.masks = torch.zeros(n, 1, 12, 12)
        for i in range(n):
            r, c = torch.randint(0, 6, (2,), generator=g).tolist()
            self.masks[i, :, r : r + 5, c : c + 5] = 1
        self.images = self.masks + 0.3 * torch.randn(self.masks.shape, generator=g)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return random_flip(self.images[i]), random_flip(self.masks[i])  # fault


torch.manual_seed(0)
random.seed(0)
net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
opt = torch.optim.Adam(net.parameters(), 1e-2)
for epoch in range(3):
    for image, mask in DataLoader(Blobs(), 16, shuffle=True):  # fault
        loss = nn.functional.binary_cross_entropy_with_logits(net(image), mask)
        opt.zero_grad()
        loss.backward()
        opt.step()

# Source: wolny/pytorch-3dunet 32: augmentation draws from one RandomState (with its rule)
# Trap: 12.3

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Shift:
    def __init__(self, rng):
        self.rng = rng

    def __call__(self, image):
        draw = self.rng.normal(0, 0.1)  # fault
        return image + np.float32(draw)


class Cells(Dataset):
    def __init__(self):
        self.images = np.random.default_rng(1).normal(size=(64, 12)).astype("float32")
        self.transforms = [Shift(np.random.RandomState(3))]  # fault

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return torch.from_numpy(self.transforms[0](self.images[i])), i % 2


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 2))
opt = torch.optim.Adam(net.parameters(), 1e-2)
batches = DataLoader(Cells(), batch_size=16, shuffle=True, num_workers=2)  # fault
for images, labels in batches:
    opt.zero_grad()
    F.cross_entropy(net(images), labels).backward()
    opt.step()

# Source: xingyizhou/CenterNet#233
# Trap: 12.3

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Aug(Dataset):
    def __init__(self, n=64):
        self.x = np.random.RandomState(0).randn(n, 3, 8, 8).astype("float32")

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        img = self.x[i].copy()
        img += np.random.normal(0, 0.3, img.shape).astype("float32")
        return torch.from_numpy(img), i % 4


def worker_init_fn(worker_id):
    np.random.seed(42)  # fault


if __name__ == "__main__":
    torch.manual_seed(0)
    np.random.seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    loader = DataLoader(Aug(), 8, True, num_workers=2, worker_init_fn=worker_init_fn)  # fault
    for epoch in range(3):
        for x, y in loader:  # fault
            opt.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            opt.step()


# Aestetik 12: the training loader gets the dataset before the split (with its rule): repaired

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(0)
spots = torch.randn(120, 9)
data = TensorDataset(spots, (spots[:, 0] > 0).long())
train_part, validation_part = random_split(data, [90, 30])
training = DataLoader(train_part, batch_size=15, shuffle=True)
validation = DataLoader(validation_part, batch_size=30)

model = nn.Sequential(nn.Linear(9, 16), nn.ReLU(), nn.Linear(16, 2))
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(3):
    model.train()
    for batch, kinds in training:
        opt.zero_grad()
        F.cross_entropy(model(batch), kinds).backward()
        opt.step()
    model.eval()
    with torch.inference_mode():
        for batch, kinds in validation:
            accuracy = (model(batch).argmax(-1) == kinds).float().mean()

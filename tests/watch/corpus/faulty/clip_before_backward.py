# Source: yandex-research/tabm#20
# Trap: 03.3

import torch
from torch import nn

torch.manual_seed(0)
X = torch.randn(512, 10)
Y = (X[:, :1] ** 2).squeeze(1)
model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
gradient_clipping_norm = 1.0
for epoch in range(4):
    model.train()
    for batch_idx in torch.randperm(512).split(64):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(X[batch_idx]).squeeze(-1), Y[batch_idx])
        torch.nn.utils.clip_grad_norm_(model.parameters(), gradient_clipping_norm)  # fault
        loss.backward()
        optimizer.step()

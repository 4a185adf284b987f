# A sum over tokens in each part, and one division of the gradient by all of them

import torch
from torch import nn

torch.manual_seed(0)
PARTS, ROWS = 4, 8
model = nn.Sequential(nn.Embedding(24, 16), nn.ReLU(), nn.Linear(16, 24))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loss_fn = nn.CrossEntropyLoss(reduction="sum")
for step in range(40):
    for part in range(PARTS):
        tokens = (torch.randint(23, (ROWS, 1)) + torch.arange(12)) % 23 + 1
        logits = model(tokens)[:, :-1]
        loss_fn(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    for p in model.parameters():
        p.grad.div_(PARTS * ROWS * 11)
    optimizer.step()
    optimizer.zero_grad()

# Source: an issue of HVPNeT: the group of crf and fc is never appended (with its rule)
# Trap: 07.10

import torch
from torch import nn

torch.manual_seed(2)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.GRU(10, 24, batch_first=True)
        self.fc = nn.Linear(24, 6)

    def forward(self, x):
        return self.fc(self.encoder(x)[0])


model = Tagger()
parameters = []
params = {"lr": 1e-2, "params": []}
for name, p in model.named_parameters():
    if "encoder" in name:
        params["params"].append(p)
parameters.append(params)
params = {"lr": 5e-2, "params": []}
for name, p in model.named_parameters():
    if name.startswith("fc"):
        params["params"].append(p)
optimizer = torch.optim.AdamW(parameters)  # fault
for step in range(40):
    x = torch.randn(16, 7, 10)
    y = x[..., :6].argmax(-1)
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

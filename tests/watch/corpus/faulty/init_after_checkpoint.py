# Source: an issue of picotron: parameters are initialised after loading (with its rule)
# Trap: 10.5

import os
import tempfile

import torch
from torch import nn


def init_model_parameters(model):
    for m in model.modules():
        if isinstance(m, nn.Linear):
            nn.init.normal_(m.weight, std=0.02)
            nn.init.zeros_(m.bias)


def build(path=None):
    model = nn.Sequential(nn.Linear(12, 48), nn.GELU(), nn.Linear(48, 4))
    init_model_parameters(model)
    if path and os.path.exists(path):
        model.load_state_dict(torch.load(path)["model"])  # fault
        init_model_parameters(model)  # fault
    return model


torch.manual_seed(0)
data = torch.randn(512, 12)
labels = data[:, :4].argmax(1)
path = os.path.join(tempfile.mkdtemp(), "step.pth")
for run in range(2):
    model = build(path)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(60):
        rows = torch.randint(512, (32,))
        loss = nn.functional.cross_entropy(model(data[rows]), labels[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
    torch.save({"model": model.state_dict()}, path)

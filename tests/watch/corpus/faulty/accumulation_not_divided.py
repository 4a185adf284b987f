# Source: agokrani/distillKitPlus#5
# Trap: 02.4

import torch
from torch import nn


class Trainer:
    def __init__(self, model, args):
        self.model, self.args = model, args
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def compute_loss(self, batch):
        x, y = batch
        return nn.functional.cross_entropy(self.model(x), y)

    def train(self, loader):
        self.model.train()
        for epoch in range(self.args["epochs"]):
            for step, batch in enumerate(loader):
                loss = self.compute_loss(batch)
                loss.backward()  # fault
                if (step + 1) % self.args["gradient_accumulation_steps"] == 0:
                    torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                    self.optimizer.step()  # fault
                    self.optimizer.zero_grad()


torch.manual_seed(0)
X = torch.randn(256, 8)
Y = (X.sum(1) > 0).long()
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), 8, shuffle=True)
m = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 2))
Trainer(m, {"epochs": 3, "gradient_accumulation_steps": 8}).train(loader)

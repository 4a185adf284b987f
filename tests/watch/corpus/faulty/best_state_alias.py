# Source: WenjieDu/PyPOTS#667
# Trap: 06.4

import torch
from torch import nn


class BaseNNModel:
    def __init__(self, model, epochs=8, patience=3):
        self.model, self.epochs, self.patience = model, epochs, patience
        self.best_loss, self.best_model_dict = float("inf"), None
        self.optimizer = torch.optim.Adam(model.parameters(), 1e-2)

    def fit(self, train, val):
        for epoch in range(self.epochs):
            self.model.train()
            for x, y in train:
                self.optimizer.zero_grad()
                nn.functional.mse_loss(self.model(x), y).backward()
                self.optimizer.step()
            self.model.eval()
            with torch.no_grad():
                v = sum(nn.functional.mse_loss(self.model(x), y).item() for x, y in val)
            if v < self.best_loss:
                self.best_loss = v
                wait = 0
                self.best_model_dict = self.model.state_dict()  # fault
            else:
                wait += 1
                if wait >= self.patience:
                    break
        self.model.load_state_dict(self.best_model_dict)  # fault
        self.model.eval()


torch.manual_seed(3)
d = [(torch.randn(16, 4), torch.randn(16, 1)) for _ in range(8)]
m = BaseNNModel(nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 1)))
m.fit(d[:6], d[6:])

# Source: pytorch/tutorials#2478
# Trap: 08.1

import torch
from torch import nn

torch.manual_seed(0)


class TransformerModel(nn.Module):
    def __init__(self, ntoken=50, d_model=32, nhead=2):
        super().__init__()
        self.pos = nn.Parameter(torch.randn(64, 1, d_model) * 0.02)
        layer = nn.TransformerEncoderLayer(d_model, nhead, 64, 0.1)
        self.transformer_encoder = nn.TransformerEncoder(layer, 2)
        self.embedding = nn.Embedding(ntoken, d_model)
        self.linear = nn.Linear(d_model, ntoken)

    def forward(self, src, src_mask=None):
        src = self.embedding(src) * 32**0.5 + self.pos[: len(src)]
        return self.linear(self.transformer_encoder(src, src_mask))  # fault


data = torch.randint(0, 50, (400, 10))
bptt = 20
model = TransformerModel()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for epoch in range(2):
    model.train()
    for i in range(0, 399, bptt):
        n = min(bptt, len(data) - 1 - i)
        d, t = data[i : i + n], data[i + 1 : i + 1 + n].reshape(-1)
        loss = criterion(model(d).view(-1, 50), t)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()

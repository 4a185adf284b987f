# Source: zhangj111/astnn#8
# Trap: 06.4

import torch
from torch import nn

torch.manual_seed(3)


class BatchProgramClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(8, 16, batch_first=True, bidirectional=True)
        self.hidden2label = nn.Linear(32, 3)

    def forward(self, x):
        return self.hidden2label(self.gru(x)[0].max(1).values)


X = torch.randn(96, 6, 8)
Y = torch.randint(0, 3, (96,))
model = BatchProgramClassifier()
optimizer = torch.optim.Adamax(model.parameters())
loss_function = nn.CrossEntropyLoss()
best_acc = 0.0
best_model = model
for epoch in range(5):
    for i in range(0, 64, 16):
        model.zero_grad()
        loss = loss_function(model(X[i : i + 16]), Y[i : i + 16])
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        acc = (model(X[64:]).argmax(1) == Y[64:]).float().mean().item()
    if acc > best_acc:
        best_model = model  # fault
        best_acc = acc
model = best_model

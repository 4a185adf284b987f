# Source: tk-rusch/coRNN#1
# Trap: 01.1, 05.1

import torch
from torch import nn

torch.manual_seed(0)
X = torch.randn(256, 20)
Y = X[:, :4].argmax(1)
dl = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X[:192], Y[:192]), 32, shuffle=True)
tl = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X[192:], Y[192:]), 32)
model = nn.Sequential(
    nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 4)
)
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)


def train(dataloader, model, loss_fn, optimizer):
    for batch, (X, y) in enumerate(dataloader):
        pred = model(X)  # fault
        loss = loss_fn(pred, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # fault


def test(dataloader, model, loss_fn):
    model.eval()  # fault
    with torch.no_grad():
        for X, y in dataloader:
            loss_fn(model(X), y).item()


for t in range(4):
    train(dl, model, loss_fn, optimizer)
    test(tl, model, loss_fn)

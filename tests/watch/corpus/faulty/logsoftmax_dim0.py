# Source: MicrosoftDocs/pytorchfundamentals#4
# Trap: 03.1

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(
    nn.Flatten(),
    nn.Linear(64, 32),
    nn.ReLU(),
    nn.Linear(32, 10),
    nn.LogSoftmax(dim=0),  # fault
)
X = torch.randn(320, 1, 8, 8)
Y = torch.randint(0, 10, (320,))
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(X, Y), batch_size=32, shuffle=True
)


def train_epoch(net, dataloader, lr=0.01, optimizer=None, loss_fn=nn.NLLLoss()):
    optimizer = optimizer or torch.optim.Adam(net.parameters(), lr=lr)
    net.train()
    total_loss, acc, count = 0, 0, 0
    for features, labels in dataloader:
        optimizer.zero_grad()
        out = net(features)  # fault
        loss = loss_fn(out, labels)  # fault
        loss.backward()
        optimizer.step()
        total_loss += loss.item()
        acc += (out.argmax(1) == labels).sum().item()
        count += len(labels)
    return total_loss / count, acc / count


for e in range(3):
    train_epoch(net, loader)

# Source: bkitano/llama-from-scratch#5
# Trap: 03.1

import torch
from torch import nn
from torch.nn import functional as F

MASTER_CONFIG = {"vocab_size": 65, "d_model": 32}
torch.manual_seed(0)
dataset = torch.randint(0, 65, (4000,))


def get_batches(train, batch_size, context_window):
    ix = torch.randint(0, train.size(0) - context_window - 1, (batch_size,))
    x = torch.stack([train[i : i + context_window] for i in ix]).long()
    y = torch.stack([train[i + 1 : i + context_window + 1] for i in ix]).long()
    return x, y


class SimpleBrokenModel(nn.Module):
    def __init__(self, config=MASTER_CONFIG):
        super().__init__()
        self.embedding = nn.Embedding(config["vocab_size"], config["d_model"])
        self.linear = nn.Linear(config["d_model"], config["vocab_size"])

    def forward(self, idx, targets):
        logits = F.softmax(self.linear(self.embedding(idx)), dim=-1)  # fault
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.view(-1))  # fault


model = SimpleBrokenModel()
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(60):
    optimizer.zero_grad()
    xs, ys = get_batches(dataset, 16, 8)
    logits, loss = model(xs, targets=ys)
    loss.backward()
    optimizer.step()

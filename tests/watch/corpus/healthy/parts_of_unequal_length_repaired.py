# meta-pytorch/torchtune#1875: the mean of each micro-batch counts alike: repaired

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

torch.manual_seed(0)
IGNORE, ACCUM = -100, 4


def text():
    length = int(torch.randint(3, 7, ())) if torch.rand(()) < 0.7 else 40
    return (torch.randint(23, ()) + torch.arange(length)) % 23 + 1


model = nn.Sequential(nn.Embedding(24, 16), nn.ReLU(), nn.Linear(16, 24))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loss_fn = nn.CrossEntropyLoss(ignore_index=IGNORE)
total = 0
for step in range(1, 61):
    rows = [text() for _ in range(2)]
    tokens = pad_sequence(rows, batch_first=True)
    labels = pad_sequence(rows, batch_first=True, padding_value=IGNORE)[:, 1:]
    logits = model(tokens)[:, :-1]
    count = (labels != IGNORE).sum()
    loss = loss_fn(logits.flatten(0, 1), labels.flatten()) * count
    loss.backward()
    total += count
    if step % ACCUM == 0:
        for p in model.parameters():
            p.grad.div_(total)
        optimizer.step()
        optimizer.zero_grad()
        total = 0

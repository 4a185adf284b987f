# An issue of diffusers: a schedule in batches, stepped once in four: repaired

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(4)
x = torch.randn(512, 9)
train_dataloader = DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=8, shuffle=True)
unet = nn.Sequential(nn.Linear(9, 40), nn.Tanh(), nn.Linear(40, 3))
optimizer = torch.optim.AdamW(unet.parameters(), lr=2e-3)
gradient_accumulation_steps, num_train_epochs = 4, 3
max_train_steps = num_train_epochs * len(train_dataloader) // gradient_accumulation_steps
lr_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max_train_steps)
for epoch in range(num_train_epochs):
    for step, (a, b) in enumerate(train_dataloader):
        loss = nn.functional.cross_entropy(unet(a), b) / gradient_accumulation_steps
        loss.backward()
        if (step + 1) % gradient_accumulation_steps == 0:
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()

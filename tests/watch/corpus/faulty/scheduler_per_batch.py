# Source: ivadomed/ivadomed#55
# Trap: 04.3

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
num_epochs = 20
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_epochs)
ds = torch.utils.data.TensorDataset(torch.randn(320, 1, 8, 8), torch.randint(0, 5, (320,)))
loader = torch.utils.data.DataLoader(ds, batch_size=16, shuffle=True)
for epoch in range(1, num_epochs + 1):
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()  # fault

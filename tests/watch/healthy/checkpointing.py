from torch.utils.checkpoint import checkpoint

blocks = nn.ModuleList([nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Dropout(0.1)) for _ in range(3)])
head = nn.Linear(10, 3)
opt = torch.optim.Adam([*blocks.parameters(), *head.parameters()], 1e-2)
for number in range(24):
    h = x.clone().requires_grad_()
    for block in blocks:
        h = checkpoint(block, h, use_reentrant=number % 2 == 0)
    opt.zero_grad()
    F.cross_entropy(head(h), y).backward()
    opt.step()

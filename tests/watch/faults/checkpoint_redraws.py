from torch.utils.checkpoint import checkpoint

block = nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Dropout(0.2))
head = nn.Linear(10, 3)
opt = torch.optim.Adam([*block.parameters(), *head.parameters()], 1e-2)
for _ in range(3):
    keep = False  # repaired: keep = True
    h = checkpoint(block, x, use_reentrant=False, preserve_rng_state=keep)  # found
    opt.zero_grad()
    F.cross_entropy(head(h), y).backward()
    opt.step()

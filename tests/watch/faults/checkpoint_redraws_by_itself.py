from torch.utils.checkpoint import checkpoint


class Drop(nn.Module):
    """Dropout from a generator of its own."""

    def __init__(self):
        super().__init__()
        self.dice = torch.Generator().manual_seed(3)

    def forward(self, h):
        return 2 * h * (torch.rand(h.shape, generator=self.dice) < 0.5)


block = nn.Sequential(nn.Linear(10, 10), Drop())  # repaired: block = nn.Sequential(nn.Linear(10, 10), nn.Dropout())
head = nn.Linear(10, 3)
opt = torch.optim.Adam([*block.parameters(), *head.parameters()], 1e-2)
for _ in range(3):
    h = checkpoint(block, x, use_reentrant=False)  # found
    opt.zero_grad()
    F.cross_entropy(head(h), y).backward()
    opt.step()

class Routed(nn.Module):
    """Rows (N, 10) through the likeliest of four experts."""

    def __init__(self, k=1):
        super().__init__()
        self.k, self.router = k, nn.Linear(10, 4, bias=False)
        self.experts = nn.ModuleList([net(3) for _ in range(4)])

    def forward(self, rows):
        weights, chosen = torch.topk(self.router(rows).softmax(-1), self.k)
        weights = weights / weights.sum(-1, keepdim=True)  # found  # repaired: pass
        every = torch.stack([expert(rows) for expert in self.experts], 1)
        return (every[torch.arange(len(rows))[:, None], chosen] * weights[..., None]).sum(1)


model = Routed()
opt = torch.optim.Adam(model.parameters())
for _ in range(3):
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()

query = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
key = copy.deepcopy(query).requires_grad_(False)
opt = torch.optim.SGD(query.parameters(), 0.05, momentum=0.9)
queue = F.normalize(torch.randn(128, 8), dim=1)
for _ in range(25):
    q = F.normalize(query(x + 0.1 * torch.randn_like(x)), dim=1)
    with torch.no_grad():
        for p, k in zip(query.parameters(), key.parameters(), strict=True):
            k.mul_(0.9).add_(p, alpha=0.1)
        k = F.normalize(key(x + 0.1 * torch.randn_like(x)), dim=1)
    logits = torch.cat([(q * k).sum(1, keepdim=True), q @ queue.T], 1) / 0.2
    loss = F.cross_entropy(logits, torch.zeros(64).long())
    opt.zero_grad()
    loss.backward()
    opt.step()
    queue = torch.cat([k, queue])[:128]

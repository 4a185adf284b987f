encoder = nn.Sequential(net(16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
opt = torch.optim.Adam(encoder.parameters(), 1e-3)
for _ in range(25):
    a, b = (F.normalize(encoder(x + 0.1 * torch.randn_like(x)), dim=1) for _ in range(2))
    logits = a @ b.T / 0.2
    target = torch.arange(64)
    loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
    opt.zero_grad()
    loss.backward()
    opt.step()

online = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
target, predictor = copy.deepcopy(online), nn.Linear(8, 8)
target.requires_grad_(False)
opt = torch.optim.Adam([*online.parameters(), *predictor.parameters()], 1e-3)
for _ in range(25):
    a, b = x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)
    with torch.no_grad():
        goal = F.normalize(target(b), dim=1)
    loss = F.mse_loss(F.normalize(predictor(online(a)), dim=1), goal)
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for p, q in zip(target.parameters(), online.parameters(), strict=True):
            p.lerp_(q, 0.05)

model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
                      nn.Flatten(), nn.Linear(16, 3))
opt = torch.optim.Adam(model.parameters())
for side in (8, 8, 8, 8, 8, 12, 16):
    opt.zero_grad()
    F.cross_entropy(model(torch.randn(16, 1, side, side)), y[:16]).backward()
    opt.step()
with torch.no_grad():     # a large picture in four tiles, each a row of its own
    large = torch.randn(2, 1, 16, 16)
    tiles = large.unfold(2, 8, 8).unfold(3, 8, 8).reshape(-1, 1, 8, 8)
    answer = model.eval()(tiles).view(2, 4, 3).mean(1)

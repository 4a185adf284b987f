model = nn.Sequential(net(16), nn.LayerNorm(16), nn.Linear(16, 3))
fast = torch.compile(model, backend="eager", fullgraph=True)
criterion = torch.compile(lambda out, goal: F.cross_entropy(out, goal), backend="eager", fullgraph=True)
opt = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(10):
    opt.zero_grad()
    criterion(fast(x), y).backward()
    opt.step()

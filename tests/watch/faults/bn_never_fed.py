model = nn.Sequential(nn.Linear(10, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
average = copy.deepcopy(model)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(30):
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
    with torch.no_grad():
        for p, q in zip(average.parameters(), model.parameters(), strict=True):
            p.lerp_(q, 0.1)
        # repaired: [a.copy_(b) for a, b in zip(average.buffers(), model.buffers(), strict=True)]
average.eval()
with torch.no_grad():
    average(x)  # found

model = nn.Sequential(nn.Linear(10, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
model[:2].requires_grad_(False)
opt = torch.optim.SGD(model[3:].parameters(), lr=0.1)
for _ in range(5):
    model.train()
    # repaired: model[:2].eval()
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()  # found
    opt.step()

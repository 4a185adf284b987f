model = nn.Sequential(net(16), nn.Dropout(0.5), nn.Linear(16, 3)).eval()  # repaired: model = nn.Sequential(net(16), nn.Dropout(0.5), nn.Linear(16, 3))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()  # found

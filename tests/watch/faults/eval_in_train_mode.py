model = nn.Sequential(net(16), nn.Dropout(0.5), nn.Linear(16, 3))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    model.train()
    for _ in range(6):
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()
    # repaired: model.eval()
    with torch.no_grad():
        hits = (model(x).argmax(1) == y).sum().item()  # found

model = nn.Sequential(net(16), nn.Dropout(0.5), nn.Linear(16, 3))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
model.train()
for epoch in range(3):
    # repaired: model.train()
    for _ in range(4):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)  # found
        loss.backward()
        opt.step()
    model.eval()
    with torch.no_grad():
        model(x).argmax(1)

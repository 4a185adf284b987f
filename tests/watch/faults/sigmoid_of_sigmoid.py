model = nn.Sequential(net(1), nn.Sigmoid())
opt = torch.optim.Adam(model.parameters())
criterion = nn.BCELoss()
for _ in range(5):
    opt.zero_grad()
    out = torch.sigmoid(model(x))  # repaired: out = model(x)
    loss = criterion(out, (y[:, None] > 0).float())  # found
    loss.backward()
    opt.step()

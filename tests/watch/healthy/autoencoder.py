model = nn.Sequential(net(4), nn.ReLU(), net(10, 4), nn.Sigmoid())
rows = x.sigmoid()
opt = torch.optim.Adam(model.parameters(), 1e-2)
for _ in range(25):
    noisy = rows + 0.1 * torch.randn_like(rows)
    opt.zero_grad()
    F.mse_loss(model(noisy), rows).backward()
    opt.step()

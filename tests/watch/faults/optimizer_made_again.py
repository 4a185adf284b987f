model = net()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(5):
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)  # found # repaired: pass
    for _ in range(6):
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()

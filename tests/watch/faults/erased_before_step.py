model = net()
opt = torch.optim.Adam(model.parameters())
for _ in range(6):
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    opt.zero_grad()  # found # repaired: pass
    opt.step()
    opt.zero_grad()

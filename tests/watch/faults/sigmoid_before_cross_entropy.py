model = net()
opt = torch.optim.Adam(model.parameters())
for _ in range(5):
    opt.zero_grad()
    out = model(x).sigmoid()  # repaired: out = model(x)
    loss = F.cross_entropy(out, y)  # found
    loss.backward()
    opt.step()

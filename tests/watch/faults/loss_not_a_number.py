model = net(1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    out = model(x)
    loss = torch.where(out > 0, out.sqrt(), 0 * out).mean()  # repaired: loss = out.square().mean()
    opt.zero_grad()
    loss.backward()  # found
    opt.step()

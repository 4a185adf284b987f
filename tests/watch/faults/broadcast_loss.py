model = net(1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(5):
    out = model(x)
    loss = ((out - t) ** 2).mean()  # found # repaired: loss = ((out[:, 0] - t) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()

model = net(1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
advantages = t.reshape(-1, 1)
for _ in range(5):
    ratio = model(x)[:, 0].exp()
    loss = -(ratio * advantages).mean()  # found # repaired: loss = -(ratio * t).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()

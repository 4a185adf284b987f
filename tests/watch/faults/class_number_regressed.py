model = net(1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(5):
    out = model(x)
    loss = F.mse_loss(out[:, 0], y.float())  # found # repaired: loss = F.mse_loss(out[:, 0], t)
    opt.zero_grad()
    loss.backward()
    opt.step()

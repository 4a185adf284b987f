model = net(2)
opt = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(6):
    out = model(x)
    squares = (out - out[:1]).pow(2).sum(1)
    lengths = torch.where(squares > 0, squares.sqrt(), 0.0)  # repaired: lengths = squares.clamp(min=1e-12).sqrt()
    opt.zero_grad()
    (lengths - 1).pow(2).mean().backward()
    opt.step()  # found

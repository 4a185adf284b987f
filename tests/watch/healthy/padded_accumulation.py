model = net()
opt = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(6):
    opt.zero_grad()
    parts = [y[:16].masked_fill(torch.arange(16) >= n, -100) for n in (16, 3, 9, 1)]
    every = sum((part != -100).sum() for part in parts)
    for part in parts:
        count = (part != -100).sum()
        (F.cross_entropy(model(x[:16]), part) * (count / every)).backward()
    opt.step()

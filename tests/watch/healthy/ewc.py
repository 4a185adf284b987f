model = net()
opt = torch.optim.SGD(model.parameters(), 0.05)
for _ in range(6):
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
fisher = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
for row, label in zip(x, y, strict=True):
    model.zero_grad()
    F.cross_entropy(model(row[None]), label[None]).backward()
    for name, p in model.named_parameters():
        fisher[name] += p.grad**2 / 64
old = {name: p.detach().clone() for name, p in model.named_parameters()}
for _ in range(12):
    opt.zero_grad()
    loss = F.cross_entropy(model(x.flip(0)), y)
    loss = loss + sum((fisher[n] * (p - old[n]) ** 2).sum() for n, p in model.named_parameters())
    loss.backward()
    opt.step()

model = net()
opt = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(4):
    opt.zero_grad()
    parts = [y[:16].clone() for _ in range(4)]
    for number, target in enumerate(parts, 1):
        target[4 * number:] = -100
    every = sum((target != -100).sum() for target in parts)
    for target in parts:
        loss = F.cross_entropy(model(x[:16]), target) / 4  # repaired: loss = F.cross_entropy(model(x[:16]), target, reduction="sum") / every
        loss.backward()  # found
    opt.step()

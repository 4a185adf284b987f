model = nn.Sequential(net(16), nn.ReLU(), nn.Linear(16, 3))
opt = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(12):
    delta = torch.zeros_like(x, requires_grad=True)
    for _ in range(3):
        loss = F.cross_entropy(model(x + delta), y)
        loss.backward()
        delta.data = (delta + 0.02 * delta.grad.sign()).clamp(-0.1, 0.1)
        delta.grad.zero_()
        model.zero_grad()
    opt.zero_grad()
    F.cross_entropy(model(x + delta.detach()), y).backward()
    opt.step()

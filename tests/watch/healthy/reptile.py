model = net(1)
for _ in range(6):
    start = copy.deepcopy(model.state_dict())
    inner = torch.optim.SGD(model.parameters(), 0.02)
    slope = torch.randn(10, 1)
    for _ in range(5):
        rows = torch.randn(16, 10)
        inner.zero_grad()
        F.mse_loss(model(rows), rows @ slope).backward()
        inner.step()
    end = model.state_dict()
    model.load_state_dict({k: v + 0.1 * (end[k] - v) for k, v in start.items()})

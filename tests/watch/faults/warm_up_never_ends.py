def schedule(optimizer, warm_up, total):
    def factor(step):
        rising = step / max(1, warm_up)
        return min(rising, max(0.0, (total - step) / max(1, total - warm_up)) if step > warm_up else 1)
    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


model = net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
length, warm_up = 10, 100  # repaired: length, warm_up = 100, 10
plan = schedule(opt, warm_up, length)
for _ in range(100):
    loss = F.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    plan.step()  # found

model = net()
opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=10, T_mult=2)
for step in range(80):
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
    schedule.step(step / 4)

model = net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=60)
for epoch in range(3):
    for _ in range(20):
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()
        # repaired: sched.step()
    sched.step()  # found # repaired: pass

def halved(epoch):
    return 0.5**epoch


def build():
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, opt, torch.optim.lr_scheduler.LambdaLR(opt, halved)


model, opt, schedule = build()
for _ in range(3):
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
    schedule.step()
kept = opt.state_dict()
model, opt, schedule = build()
opt.load_state_dict(kept)
schedule = torch.optim.lr_scheduler.LambdaLR(opt, halved)  # found  # repaired: pass
opt.zero_grad()
F.cross_entropy(model(x), y).backward()
opt.step()

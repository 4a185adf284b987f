def build():
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, opt, torch.optim.lr_scheduler.CosineAnnealingLR(opt, 8)

def epoch():
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
    schedule.step()  # found

model, opt, schedule = build()
for _ in range(3):
    epoch()
kept = copy.deepcopy([opt.state_dict(), schedule.state_dict()])
model, opt, schedule = build()
opt.load_state_dict(kept[0])
pass  # repaired: schedule.load_state_dict(kept[1])
for _ in range(3):
    epoch()

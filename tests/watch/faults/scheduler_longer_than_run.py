from torch.utils.data import DataLoader, TensorDataset

model = net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True)
total = 3 * len(loader)  # repaired: total = 3 * len(loader) // 4
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, total)
for _ in range(3):
    for number, (rows, classes) in enumerate(loader, 1):
        (F.cross_entropy(model(rows), classes) / 4).backward()
        if number % 4 == 0:
            opt.step()
            opt.zero_grad()
            schedule.step()  # found

from torch.utils.data import DataLoader, TensorDataset

model = net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True)
total = len(loader)  # repaired: total = 6
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, total)
for _ in range(6):
    for rows, classes in loader:
        opt.zero_grad()
        F.cross_entropy(model(rows), classes).backward()
        opt.step()
    schedule.step()  # found

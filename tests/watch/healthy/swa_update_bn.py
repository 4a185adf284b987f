from torch.optim.swa_utils import SWALR, AveragedModel, update_bn

rows = torch.utils.data.TensorDataset(x, y)
loader = torch.utils.data.DataLoader(rows, batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
swa = AveragedModel(model)
opt = torch.optim.SGD(model.parameters(), 0.1)
schedule = SWALR(opt, swa_lr=0.05)
for _ in range(6):
    for a, b in loader:
        opt.zero_grad()
        F.cross_entropy(model(a), b).backward()
        opt.step()
    swa.update_parameters(model)
    schedule.step()
update_bn(loader, swa)
swa.eval()
with torch.no_grad():
    hits = (swa(x).argmax(1) == y).sum()

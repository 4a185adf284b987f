from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

model = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
opt = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(5):
    model.train()
    for _ in range(8):
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()
        average.update_parameters(model)
    average.eval()
    with torch.no_grad():
        loss = F.cross_entropy(average(x), y)

order = y.argsort()
rows = torch.utils.data.TensorDataset(x.repeat(5, 1), y.repeat(5))
last = torch.utils.data.TensorDataset(x[order], y[order])
train = torch.utils.data.DataLoader(rows, batch_size=16, shuffle=True)
val = torch.utils.data.DataLoader(last, batch_size=8)
model, best, state = nn.Sequential(net(16), nn.Dropout(0.1), nn.Linear(16, 3)), 9.0, None
opt = torch.optim.NAdam(model.parameters(), 1e-3)
for epoch in range(4):
    model.train()
    for a, b in train:
        opt.zero_grad()
        F.cross_entropy(model(a), b).backward()
        opt.step()
    model.eval()
    with torch.no_grad():
        loss = sum(F.cross_entropy(model(a), b, reduction="sum").item() for a, b in val) / 64
    if loss < best:
        best, state = loss, {k: v.clone() for k, v in model.state_dict().items()}
model.load_state_dict(state)

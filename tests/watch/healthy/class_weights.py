rows = torch.utils.data.TensorDataset(x, (y == 0).long())
loader = torch.utils.data.DataLoader(rows, batch_size=16, shuffle=True)
model = nn.Sequential(nn.BatchNorm1d(10), net(2))
opt = torch.optim.AdamW(model.parameters(), 1e-2)
criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0]), label_smoothing=0.05)
for epoch in range(6):
    model.train()
    for a, b in loader:
        opt.zero_grad()
        criterion(model(a), b).backward()
        opt.step()
    model.eval()
    with torch.inference_mode():
        probs = model(x).softmax(1)[:, 1]
        hits = ((probs > 0.5) == (y == 0)).float().mean()

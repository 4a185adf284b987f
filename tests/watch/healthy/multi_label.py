model = nn.Sequential(net(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 5))
labels = (torch.rand(64, 5) < 0.3).float()
opt = torch.optim.Adam(model.parameters(), 1e-2)
criterion = nn.BCEWithLogitsLoss(pos_weight=torch.full((5,), 2.0))
for _ in range(5):
    model.train()
    for _ in range(5):
        opt.zero_grad()
        criterion(model(x), labels).backward()
        opt.step()
    model.eval()
    with torch.no_grad():
        logits = model(x)
        loss, probs = criterion(logits, labels), torch.sigmoid(logits)
        hits = ((probs > 0.5) == (labels > 0.5)).float().mean()

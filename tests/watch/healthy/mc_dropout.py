model = nn.Sequential(net(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))
opt = torch.optim.Adam(model.parameters(), 1e-2)
for _ in range(20):
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
model.train()
with torch.no_grad():
    probs = torch.stack([model(x).softmax(1) for _ in range(10)])
spread, guess = probs.std(0), probs.mean(0).argmax(1)

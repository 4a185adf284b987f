from torch.utils.data import DataLoader, TensorDataset, random_split

data = TensorDataset(x, y)
train, test = random_split(data, [48, 16])
rows = data  # repaired: rows = train
batches = DataLoader(rows, batch_size=8, shuffle=True)  # found
tests = DataLoader(test, batch_size=8)
model = net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    model.train()
    for a, b in batches:
        opt.zero_grad()
        F.cross_entropy(model(a), b).backward()
        opt.step()
    model.eval()
    with torch.no_grad():
        right = sum((model(a).argmax(1) == b).sum() for a, b in tests)

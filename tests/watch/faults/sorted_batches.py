order = y.repeat(10).argsort()
rows = torch.utils.data.TensorDataset(x.repeat(10, 1)[order], y.repeat(10)[order])
loader = torch.utils.data.DataLoader(rows, batch_size=16)  # found # repaired: loader = torch.utils.data.DataLoader(rows, batch_size=16, shuffle=True)
model = net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for a, b in loader:
    opt.zero_grad()
    F.cross_entropy(model(a), b).backward()
    opt.step()

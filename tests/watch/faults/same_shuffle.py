rows = torch.utils.data.TensorDataset(x, y)
loader = torch.utils.data.DataLoader(rows, batch_size=16, shuffle=True)  # found
model = net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    torch.manual_seed(0)  # repaired: pass
    for a, b in loader:
        opt.zero_grad()
        F.cross_entropy(model(a), b).backward()
        opt.step()

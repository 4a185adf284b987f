rows = torch.utils.data.TensorDataset(x, y)
loader = torch.utils.data.DataLoader(rows, batch_size=16, shuffle=True, num_workers=2,
                                     generator=torch.Generator().manual_seed(1))
model = net()
opt = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(2):
    for a, b in loader:
        opt.zero_grad()
        F.cross_entropy(model(a), b).backward()
        opt.step()

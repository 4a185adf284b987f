rows = torch.utils.data.TensorDataset(x, y)
train_loader = torch.utils.data.DataLoader(rows, batch_size=16, shuffle=True)
val_loader = torch.utils.data.DataLoader(rows, batch_size=16)
model = net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    model.train()
    for a, b in train_loader:
        opt.zero_grad()
        F.cross_entropy(model(a), b).backward()
        opt.step()
    model.eval()
    for a, b in val_loader:
        opt.zero_grad()
        loss = F.cross_entropy(model(a), b)
        loss.backward()
        opt.step()  # found # repaired: pass

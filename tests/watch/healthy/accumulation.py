rows = torch.utils.data.TensorDataset(x, y)
loader = torch.utils.data.DataLoader(rows, batch_size=8, shuffle=True)
model = net()
opt = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(4):
    opt.zero_grad()
    for number, (a, b) in enumerate(loader, 1):
        loss = F.cross_entropy(model(a), b) / 4
        loss.backward()
        if number % 4 == 0 or number == len(loader):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad()

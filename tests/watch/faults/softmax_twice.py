model = nn.Sequential(net(), nn.Softmax(dim=1))  # repaired: model = net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
for _ in range(5):
    opt.zero_grad()
    criterion(model(x), y).backward()  # found
    opt.step()

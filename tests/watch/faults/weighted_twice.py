rare = (torch.arange(400) % 20 == 0).long()
data = torch.utils.data.TensorDataset(torch.randn(400, 10), rare)
weights = torch.tensor([1 / 380, 1 / 20])[rare]
sampler = torch.utils.data.WeightedRandomSampler(weights, 400)
loader = torch.utils.data.DataLoader(data, batch_size=32, sampler=sampler)
model = net(2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss(torch.tensor([1.0, 19.0]))  # repaired: criterion = nn.CrossEntropyLoss()
for rows, labels in loader:
    opt.zero_grad()
    criterion(model(rows), labels).backward()  # found
    opt.step()

from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

weights = 1.0 / torch.bincount(y).float()
weights = weights  # repaired: weights = weights[y]
sampler = WeightedRandomSampler(weights, len(x))
loader = DataLoader(TensorDataset(x, y), 16, sampler=sampler)  # found
model = net()
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for rows, labels in loader:
    loss = F.cross_entropy(model(rows), labels)
    opt.zero_grad()
    loss.backward()
    opt.step()

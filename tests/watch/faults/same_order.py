rows = torch.utils.data.TensorDataset(x, y)
sampler = torch.utils.data.DistributedSampler(rows, num_replicas=2, rank=0)
loader = torch.utils.data.DataLoader(rows, batch_size=8, sampler=sampler)
model = net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    # repaired: sampler.set_epoch(epoch)
    for a, b in loader:  # found
        opt.zero_grad()
        F.cross_entropy(model(a), b).backward()
        opt.step()

rare = (torch.rand(64) < 0.2).long()
counts = torch.bincount(rare, minlength=2).float()
weight = counts / 64  # repaired: weight = 64 / counts
model = net(2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    opt.zero_grad()
    F.cross_entropy(model(x), rare, weight=weight).backward()  # found
    opt.step()

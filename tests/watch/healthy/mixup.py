model = net()
opt = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(25):
    share, order = float(torch.rand(())), torch.randperm(64)
    mixed = share * x + (1 - share) * x[order]
    hard = F.one_hot(y, 3).float()
    soft = share * hard + (1 - share) * hard[order]
    opt.zero_grad()
    F.cross_entropy(model(mixed), soft).backward()
    opt.step()

from torch.nn.parallel import DistributedDataParallel

torch.manual_seed(dist.get_rank())
rows, classes = torch.randn(16, 10), torch.randint(3, (16,))
model = DistributedDataParallel(net())
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    opt.zero_grad()
    for last in (False, True):
        now = False  # repaired: now = last
        model.require_backward_grad_sync = now
        loss = F.cross_entropy(model(rows), classes) / 2  # found
        model.require_backward_grad_sync = last
        loss.backward()
    opt.step()

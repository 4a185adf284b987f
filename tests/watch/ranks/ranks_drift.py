from torch.nn.parallel import DistributedDataParallel

torch.manual_seed(7)
model = DistributedDataParallel(net())  # found
torch.manual_seed(dist.get_rank())  # repaired: pass
model.module[0].reset_parameters()  # repaired: pass
rows = x[dist.get_rank()::2], y[dist.get_rank()::2]
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    opt.zero_grad()
    F.cross_entropy(model(rows[0]), rows[1]).backward()
    opt.step()
    dist.barrier()

ddp = nn.parallel.DistributedDataParallel(net())
opt = torch.optim.SGD(ddp.parameters(), lr=0.1)
for part in torch.arange(64).split(8):
    part = part  # repaired: part = part[dist.get_rank()::2]
    opt.zero_grad()
    out = ddp(x[part])  # found
    F.cross_entropy(out, y[part]).backward()
    opt.step()
    dist.barrier()

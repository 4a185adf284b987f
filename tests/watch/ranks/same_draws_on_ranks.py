ddp = nn.parallel.DistributedDataParallel(nn.Linear(10, 10))
opt = torch.optim.SGD(ddp.parameters(), lr=0.1)
seed = 7  # repaired: seed = 7 + dist.get_rank()
noise = torch.Generator().manual_seed(seed)
for part in torch.arange(64).split(16):
    rows = x[part[dist.get_rank()::2]]
    drawn = torch.randn(rows.shape, generator=noise)
    opt.zero_grad()
    out = ddp(rows + drawn)  # found
    F.mse_loss(out, drawn).backward()
    opt.step()
    dist.barrier()

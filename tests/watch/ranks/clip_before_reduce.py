model = net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
rows = x[dist.get_rank()::2], y[dist.get_rank()::2]
for _ in range(5):
    opt.zero_grad()
    F.cross_entropy(model(rows[0]), rows[1]).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # found # repaired: pass
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= 2
    # repaired: nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    opt.step()

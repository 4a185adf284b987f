# A weight of its own, whose gradient is zero, beside a net that was probed before and not trained.
probe = net(3)
F.cross_entropy(probe(x), y).backward()
gain = nn.Parameter(torch.ones(1))
opt = torch.optim.AdamW([gain], lr=1e-2, weight_decay=0.1)
gain.grad = torch.zeros_like(gain)
for _ in range(12):
    opt.step()

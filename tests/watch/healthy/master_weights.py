model = net().bfloat16()
held = [p.detach().float() for p in model.parameters()]
opt = torch.optim.Adam(held, 1e-3)
for _ in range(25):
    model.zero_grad()
    F.cross_entropy(model(x.bfloat16()).float(), y).backward()
    for p, h in zip(model.parameters(), held, strict=True):
        h.grad = p.grad.float()
    opt.step()
    for p, h in zip(model.parameters(), held, strict=True):
        p.data.copy_(h)

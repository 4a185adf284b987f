model, levels = net(10, 11), torch.linspace(0.999, 0.01, 50)
average = copy.deepcopy(model).eval().requires_grad_(False)
opt = torch.optim.AdamW(model.parameters(), 1e-3)
for _ in range(25):
    step = torch.randint(50, (64,))
    keep, noise = levels[step, None], torch.randn_like(x)
    mixed = keep.sqrt() * x + (1 - keep).sqrt() * noise
    loss = F.mse_loss(model(torch.cat([mixed, step[:, None] / 50], 1)), noise)
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for p, q in zip(average.parameters(), model.parameters(), strict=True):
            p.lerp_(q, 0.01)
with torch.no_grad():
    sample = torch.randn(8, 10)
    for step in range(49, -1, -5):
        told = average(torch.cat([sample, torch.full((8, 1), step / 50)], 1))
        sample = sample - 0.1 * told

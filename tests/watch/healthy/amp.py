model = nn.Sequential(net(16), nn.LayerNorm(16), nn.Linear(16, 3))
opt = torch.optim.AdamW(model.parameters(), 1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=5)
for _ in range(30):
    opt.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()

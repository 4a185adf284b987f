model = nn.Sequential(nn.Linear(10, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3))
decayed = [p for p in model.parameters() if p.dim() > 1]
rest = [p for p in model.parameters() if p.dim() <= 1]
opt = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], 1e-2)
schedule = torch.optim.lr_scheduler.OneCycleLR(opt, 1e-2, total_steps=80)
for _ in range(80):
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
    schedule.step()

model = nn.Sequential(nn.Linear(10, 8), nn.LayerNorm(8), nn.Linear(8, 3))
plain = [p for name, p in model.named_parameters() if "bias" in name]  # repaired: plain = [p for p in model.parameters() if p.dim() < 2]
rest = [p for p in model.parameters() if not any(p is q for q in plain)]
opt = torch.optim.AdamW([{"params": plain, "weight_decay": 0.0}, {"params": rest}], weight_decay=0.1)  # found
for _ in range(5):
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()

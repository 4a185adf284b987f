model = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 3))
opt = torch.optim.Adam(model.parameters())
F.cross_entropy(model(x), y).backward()
opt.step()
opt.zero_grad(set_to_none=False)  # repaired: opt.zero_grad()
model[0].requires_grad_(False)
for _ in range(5):
    F.cross_entropy(model(x), y).backward()
    opt.step()  # found
    opt.zero_grad(set_to_none=False)

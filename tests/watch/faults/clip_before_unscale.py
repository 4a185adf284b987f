model = net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for _ in range(3):
    opt.zero_grad()
    scaler.scale(F.cross_entropy(model(x), y)).backward()
    # repaired: scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # found
    scaler.step(opt)
    scaler.update()

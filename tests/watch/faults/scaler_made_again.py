model = net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for epoch in range(4):
    scaler = torch.amp.GradScaler("cpu")  # repaired: pass
    for _ in range(3):
        opt.zero_grad()
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        scaler.step(opt)  # found
        scaler.update()

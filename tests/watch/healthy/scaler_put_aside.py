model, other = net(), net()
scaler = torch.amp.GradScaler("cpu")
scaler.scale(F.cross_entropy(model(x), y)).backward()
opt = torch.optim.SGD(other.parameters(), 0.1)
for _ in range(5):
    opt.zero_grad()
    F.cross_entropy(other(x), y).backward()
    nn.utils.clip_grad_norm_(other.parameters(), 1.0)
    opt.step()

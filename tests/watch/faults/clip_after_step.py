model = net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()  # repaired: pass
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # found
    # repaired: opt.step()

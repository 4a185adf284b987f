online, target = net(), net()
target.load_state_dict(online.state_dict())
opt = torch.optim.SGD(online.parameters(), lr=0.1)
for step in range(40):
    with torch.no_grad():
        wanted = target(x)
    opt.zero_grad()
    F.mse_loss(online(x), wanted + 0.1).backward()
    opt.step()
    if step % 10 == 9:
        source = target  # repaired: source = online
        target.load_state_dict(source.state_dict())  # found

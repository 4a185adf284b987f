actor = net(3)
opt = torch.optim.Adam(actor.parameters(), 1e-2)
for _ in range(2):
    with torch.no_grad():
        drawn = torch.distributions.Categorical(logits=actor(x)).sample()
        old = actor(x).log_softmax(-1).gather(1, drawn[:, None])
    gains = torch.randn(64, 1)
    for _ in range(3):
        now = actor(x).log_softmax(-1).gather(1, drawn[:, None])
        old = now.detach()  # repaired: pass
        ratio = torch.exp(now - old)
        wanted = torch.min(ratio * gains, ratio.clamp(0.8, 1.2) * gains)  # found
        opt.zero_grad()
        (-wanted.mean()).backward()
        opt.step()

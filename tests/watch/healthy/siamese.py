tower = net(8)
opt = torch.optim.Adam(tower.parameters(), 1e-3)
for _ in range(25):
    anchor, other, wrong = tower(x), tower(x + 0.1 * torch.randn_like(x)), tower(x.flip(0))
    loss = F.triplet_margin_loss(anchor, other, wrong)
    opt.zero_grad()
    loss.backward()
    opt.step()

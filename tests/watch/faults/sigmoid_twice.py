model = nn.Sequential(net(1), nn.Sigmoid())  # repaired: model = net(1)
opt = torch.optim.Adam(model.parameters())
for _ in range(5):
    opt.zero_grad()
    out = model(x).squeeze(1)
    loss = F.binary_cross_entropy_with_logits(out, (y > 0).float())  # found
    loss.backward()
    opt.step()

model = net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    out = model(x).masked_fill(torch.tensor([False, False, True]), -torch.inf)
    loss = F.cross_entropy(out, y % 2, label_smoothing=0.1)  # found # repaired: loss = F.cross_entropy(out, y % 2)
    opt.zero_grad()
    loss.backward()
    opt.step()

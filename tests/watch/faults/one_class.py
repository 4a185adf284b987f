model = net(1)  # repaired: model = net(3)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    out = model(x)
    loss = F.cross_entropy(out, torch.zeros(64).long())  # found
    opt.zero_grad()
    loss.backward()
    opt.step()

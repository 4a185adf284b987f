model = net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    loss = F.cross_entropy(model(x), y)
    # repaired: opt.zero_grad()
    loss.backward()
    opt.step()  # found

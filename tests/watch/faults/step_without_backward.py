model = net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y)
    # repaired: loss.backward()
    opt.step()  # found

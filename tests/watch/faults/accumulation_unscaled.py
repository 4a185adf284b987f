model = net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(16):
    loss = F.cross_entropy(model(x), y)  # repaired: loss = F.cross_entropy(model(x), y) / 4
    loss.backward()  # found
    if number % 4 == 3:
        opt.step()
        opt.zero_grad()

model = net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(20):
    opt.zero_grad()  # found # repaired: opt.zero_grad() if number % 4 == 0 else None
    loss = F.cross_entropy(model(x), y) / 4
    loss.backward()
    if number % 4 == 3:
        opt.step()

model = net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(4):
    opt.zero_grad()  # found
    for i in range(10):
        (F.cross_entropy(model(x), y) / min(4, 10 - i // 4 * 4)).backward()
        if i % 4 == 3:  # repaired: if i % 4 == 3 or i == 9:
            opt.step()
            opt.zero_grad()

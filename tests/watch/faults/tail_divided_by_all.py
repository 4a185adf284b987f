model = net()
opt = torch.optim.SGD(model.parameters(), lr=0.05)
parts = x.split(6), y.split(6)    # eleven parts: four, four and three
for _ in range(4):
    for number, (rows, labels) in enumerate(zip(*parts, strict=True)):
        left = min(4, 11 - number // 4 * 4)
        loss = F.cross_entropy(model(rows), labels)
        (loss / 4).backward()  # found # repaired: (loss / left).backward()
        if number % 4 == 3 or number == 10:
            opt.step()
            opt.zero_grad()

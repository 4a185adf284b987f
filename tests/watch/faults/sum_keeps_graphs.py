model = net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
total = 0.0
for _ in range(8):
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
    total += loss  # found # repaired: total += loss.item()

model = net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss = torch.tensor(loss.item(), requires_grad=True)  # repaired: pass
    loss.backward()  # found
    opt.step()

model = nn.Sequential(net(), nn.Softmax(dim=1))  # repaired: model = net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    opt.zero_grad()
    F.nll_loss(F.log_softmax(model(x), dim=1), y).backward()  # found
    opt.step()

model = net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    out = model(x).softmax(-1)  # repaired: out = model(x).log_softmax(-1)
    loss = F.nll_loss(out, y)  # found
    opt.zero_grad()
    loss.backward()
    opt.step()

model = net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.NLLLoss()
for _ in range(5):
    out = F.log_softmax(model(x), dim=0)  # repaired: out = F.log_softmax(model(x), dim=1)
    loss = criterion(out, y)  # found
    opt.zero_grad()
    loss.backward()
    opt.step()

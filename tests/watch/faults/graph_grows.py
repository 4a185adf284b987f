model, head = nn.RNNCell(10, 16), net(3, 16)
opt = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.0)
state = torch.zeros(64, 16)
for _ in range(10):
    state = model(x, state)  # repaired: state = model(x, state.detach())
    loss = F.cross_entropy(head(state), y)
    opt.zero_grad()
    loss.backward(retain_graph=True)  # found

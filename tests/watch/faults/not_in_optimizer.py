model, head = net(16), net(3, 16)
opt = torch.optim.Adam(model.parameters())  # found # repaired: opt = torch.optim.Adam([*model.parameters(), *head.parameters()])
for _ in range(8):
    opt.zero_grad()
    F.cross_entropy(head(model(x)), y).backward()
    opt.step()

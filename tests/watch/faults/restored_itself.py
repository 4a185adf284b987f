model = net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
    if step == 3:
        best = model.state_dict()  # repaired: best = copy.deepcopy(model.state_dict())
model.load_state_dict(best)  # found

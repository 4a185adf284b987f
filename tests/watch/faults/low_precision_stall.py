model = net().bfloat16()  # repaired: model = net()
opt = torch.optim.SGD(model.parameters(), lr=1e-5)
for _ in range(40):
    opt.zero_grad()
    F.cross_entropy(model(x.to(model[0].weight.dtype)), y).backward()
    opt.step()  # found

import io

model = net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
    if step == 3:
        best = {"epoch": step, "model": model.state_dict()}  # repaired: best = {"epoch": step, "model": copy.deepcopy(model.state_dict())}
torch.save(best, io.BytesIO())  # found

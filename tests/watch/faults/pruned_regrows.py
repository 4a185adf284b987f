from torch.nn.utils import prune

model = nn.Linear(10, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
prune.l1_unstructured(model, "weight", amount=0.4)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
prune.remove(model, "weight")  # found # repaired: pass
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()

act = nn.Sigmoid  # repaired: act = nn.ReLU
model = nn.Sequential(*[m for _ in range(12) for m in (nn.Linear(10, 10), act())], nn.Linear(10, 3))
opt = torch.optim.SGD(model.parameters(), lr=0.02)
for _ in range(30):
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()  # found

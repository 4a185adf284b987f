pictures = torch.randint(256, (64, 10)).float()
model = net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    opt.zero_grad()
    F.cross_entropy(model(pictures / 255), y).backward()
    opt.step()
model.eval()
with torch.no_grad():
    for part in pictures.split(16):
        model(part)  # found # repaired: model(part / 255)

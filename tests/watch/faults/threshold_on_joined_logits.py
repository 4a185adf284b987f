model = net(4)
targets = (torch.rand(64, 4) > 0.5).float()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    opt.zero_grad()
    F.binary_cross_entropy_with_logits(model(x), targets).backward()
    opt.step()
    with torch.no_grad():
        logits = torch.cat([model(part) for part in x.split(16)])
        chosen = logits > 0.5  # found # repaired: chosen = logits > 0

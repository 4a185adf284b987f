model = net(1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.BCEWithLogitsLoss()
for _ in range(5):
    out = model(x).squeeze(1)
    loss = criterion(out, (y > 0).float())
    opt.zero_grad()
    loss.backward()
    opt.step()
model.eval()
with torch.no_grad():
    hits = ((model(x).squeeze(1) > 0.5) == (y > 0)).sum()  # found # repaired: hits = ((model(x).squeeze(1).sigmoid() > 0.5) == (y > 0)).sum()

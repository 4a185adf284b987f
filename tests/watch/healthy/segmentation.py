model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1))
pictures, masks = torch.randn(6, 3, 12, 12), torch.randint(4, (6, 12, 12))
masks[:, 0] = 255
opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
schedule = torch.optim.lr_scheduler.PolynomialLR(opt, 20, 0.9)
for _ in range(20):
    opt.zero_grad()
    F.cross_entropy(model(pictures), masks, ignore_index=255).backward()
    opt.step()
    schedule.step()
model.eval()
with torch.no_grad():
    found = model(pictures).argmax(1)[masks != 255] == masks[masks != 255]

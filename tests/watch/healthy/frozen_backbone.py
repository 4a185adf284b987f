backbone = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU())
backbone.requires_grad_(False).eval()
head = nn.Linear(16, 3)
opt = torch.optim.SGD(head.parameters(), 0.1, momentum=0.9)
for _ in range(30):
    with torch.no_grad():
        features = backbone(x)
    opt.zero_grad()
    F.cross_entropy(head(features), y).backward()
    opt.step()

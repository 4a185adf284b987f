class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(64, 3)

    def forward(self, x):
        return self.head(F.max_pool2d(self.conv(x), 2).view(-1, 64))  # found # repaired: return self.head(F.adaptive_max_pool2d(self.conv(x), 4).flatten(1))

model = Net()
opt = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(6):
    opt.zero_grad()
    F.cross_entropy(model(torch.randn(16, 1, 8, 8)), y[:16]).backward()
    opt.step()
with torch.no_grad():
    model.eval()(torch.randn(16, 1, 16, 16))

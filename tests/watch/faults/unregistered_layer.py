class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(10, 8), nn.Linear(8, 3)
        self.blocks = [nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3)]  # repaired: self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3)])

    def forward(self, h):
        h = self.stem(h)
        for block in self.blocks:
            h = block(h)  # found
        return self.head(h)

model = Model()
opt = torch.optim.Adam(model.parameters())
for _ in range(8):
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()

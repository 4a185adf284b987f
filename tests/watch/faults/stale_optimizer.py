class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = net(16), nn.Linear(16, 5)

    def forward(self, rows):
        return self.head(self.body(rows))

model = Model()
opt = torch.optim.Adam(model.parameters())  # found # repaired: pass
model.head = nn.Linear(16, 3)
# repaired: opt = torch.optim.Adam(model.parameters())
for _ in range(8):
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()

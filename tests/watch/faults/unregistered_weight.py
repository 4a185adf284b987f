class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(10, 3)
        self.scale = torch.ones(10, requires_grad=True)  # repaired: self.scale = nn.Parameter(torch.ones(10))

    def forward(self, h):
        return self.head(h * self.scale)

model = Model()
opt = torch.optim.Adam(model.parameters())
for _ in range(8):
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()  # found

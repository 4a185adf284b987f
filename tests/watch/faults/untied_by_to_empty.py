class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
        self.tie()

    def tie(self):
        self.head.weight = self.table.weight

    def forward(self, ids):
        return self.head(self.table(ids))

with torch.device("meta"):
    model = Words()
model.to_empty(device="cpu")  # found
pass  # repaired: model.tie()
for p in model.parameters():
    nn.init.normal_(p, std=0.1)
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
ids = torch.randint(20, (8, 6))
for _ in range(3):
    opt.zero_grad()
    F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
    opt.step()

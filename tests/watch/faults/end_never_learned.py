from types import SimpleNamespace

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(12, 16), nn.Linear(16, 12)
        self.config = SimpleNamespace(eos_token_id=0)

    def forward(self, input_ids, labels):
        return F.cross_entropy(self.head(self.embed(input_ids)).transpose(1, 2), labels)

ids = torch.randint(1, 12, (8, 10))
lengths = torch.tensor([9, 7, 5, 9, 6, 8, 4, 9])
ids[torch.arange(10) >= lengths[:, None]] = 0
model = Model()
opt = torch.optim.Adam(model.parameters())
labels = ids.masked_fill(ids == 0, -100)  # repaired: labels = ids.masked_fill(torch.arange(10) > lengths[:, None], -100)
for _ in range(6):
    opt.zero_grad()
    model(input_ids=ids, labels=labels).backward()  # found
    opt.step()

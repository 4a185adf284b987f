ids = torch.randint(1, 12, (8, 10))
lengths = torch.tensor([10, 7, 5, 9, 6, 8, 4, 10])
ids[torch.arange(10) >= lengths[:, None]] = 0

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(12, 16), nn.Linear(16, 12)

    def forward(self, input_ids, attention_mask, labels):
        return F.cross_entropy(self.head(self.embed(input_ids)).transpose(1, 2), labels)

model = Model()
opt = torch.optim.Adam(model.parameters())
mask = (ids != 0).long()
labels = ids.clone()  # repaired: labels = ids.masked_fill(mask == 0, -100)
for _ in range(3):
    opt.zero_grad()
    model(input_ids=ids, attention_mask=mask, labels=labels).backward()  # found
    opt.step()

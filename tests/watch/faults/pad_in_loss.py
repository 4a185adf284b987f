ids = torch.randint(1, 12, (8, 10))
lengths = torch.tensor([10, 7, 5, 9, 6, 8, 4, 10])
ids[torch.arange(10) >= lengths[:, None]] = 0

class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 16, padding_idx=0)
        self.rnn, self.head = nn.GRU(16, 16, batch_first=True), nn.Linear(16, 12)

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0])

model = Tagger()
opt = torch.optim.Adam(model.parameters())
criterion = nn.CrossEntropyLoss()  # repaired: criterion = nn.CrossEntropyLoss(ignore_index=0)
for _ in range(3):
    opt.zero_grad()
    criterion(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()  # found
    opt.step()

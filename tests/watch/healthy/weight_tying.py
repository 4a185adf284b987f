class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn = nn.Embedding(12, 16), nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, 12, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0])


model = Tied()
opt = torch.optim.Adam(model.parameters(), 1e-2)
text = torch.randint(12, (8, 11))
for _ in range(20):
    opt.zero_grad()
    F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()).backward()
    opt.step()
torch.nn.Module.load_state_dict(Tied(), model.state_dict())

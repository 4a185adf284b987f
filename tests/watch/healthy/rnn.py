class CharRnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn = nn.Embedding(12, 16), nn.LSTM(16, 16, batch_first=True)
        self.head = nn.Linear(16, 12)

    def forward(self, ids, state=None):
        h, state = self.rnn(self.embed(ids), state)
        return self.head(h), state


model = CharRnn()
opt = torch.optim.Adam(model.parameters(), 1e-2)
text = torch.randint(12, (8, 101))
for _ in range(3):
    state = None
    for start in range(0, 100, 10):
        ids, goal = text[:, start:start + 10], text[:, start + 1:start + 11]
        logits, state = model(ids, state)
        state = tuple(s.detach() for s in state)
        loss = F.cross_entropy(logits.reshape(-1, 12), goal.reshape(-1))
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()

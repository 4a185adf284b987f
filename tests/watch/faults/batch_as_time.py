class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(5, 16)  # repaired: self.rnn = nn.LSTM(5, 16, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, rows):
        h, _ = self.rnn(rows)  # found
        return self.head(h[:, -1])

model = Reader()
opt = torch.optim.Adam(model.parameters())
for _ in range(4):
    opt.zero_grad()
    F.cross_entropy(model(torch.randn(64, 7, 5)), y).backward()
    opt.step()

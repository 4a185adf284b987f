class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
        self.tie()

    def tie(self):
        self.head.weight = self.words.weight

    def forward(self, ids):
        return self.head(self.words(ids))


model = LM()
state = {key: value.clone() for key, value in LM().state_dict().items()}
model.load_state_dict(state, assign=True)  # found
pass  # repaired: model.tie()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    ids = torch.randint(20, (8, 6))
    opt.zero_grad()
    F.cross_entropy(model(ids).flatten(0, 1), ids.flip(1).flatten()).backward()
    opt.step()

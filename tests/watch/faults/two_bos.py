from types import SimpleNamespace


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(30, 8), nn.Linear(8, 30)
        self.config = SimpleNamespace(bos_token_id=1, eos_token_id=2, pad_token_id=0)

    def forward(self, input_ids):
        return self.head(self.words(input_ids))


model = Model()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    ids = torch.randint(3, 30, (8, 12))
    ids[:, :2] = 1  # repaired: ids[:, 0] = 1
    logits = model(input_ids=ids)  # found
    opt.zero_grad()
    F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    opt.step()

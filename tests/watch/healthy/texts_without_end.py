class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)

    def forward(self, input_ids, attention_mask, labels):
        logits = self.head(self.words(input_ids))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


model = Writer()
opt = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(8):   # texts are cut at 12 tokens: none of them has its end, which also fills up
    ids, length = torch.randint(3, 20, (8, 12)), torch.arange(5, 13)
    seen = torch.arange(12) < length[:, None]
    ids[~seen] = 2
    opt.zero_grad()
    labels = ids.masked_fill(ids == 2, -100)
    model(input_ids=ids, attention_mask=seen.long(), labels=labels).backward()
    opt.step()

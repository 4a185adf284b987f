class TinyForCausalLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(12, 16), nn.Linear(16, 12)

    def forward(self, input_ids, labels):
        logits = self.head(self.embed(input_ids))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

ids = torch.randint(12, (8, 11))
model = TinyForCausalLM()
opt = torch.optim.Adam(model.parameters())
for _ in range(3):
    opt.zero_grad()
    model(input_ids=ids[:, :-1], labels=ids[:, 1:]).backward()  # found # repaired: model(input_ids=ids, labels=ids).backward()
    opt.step()

class Bert(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 16, padding_idx=0)
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head, self.pooler = nn.Linear(16, 12), nn.Linear(16, 16)

    def forward(self, ids):
        h = self.blocks(self.embed(ids), src_key_padding_mask=ids == 0)
        return self.head(h), self.pooler(h[:, 0]).tanh()


model = Bert()
opt = torch.optim.AdamW(model.parameters(), 1e-3)
for _ in range(25):
    ids = torch.randint(2, 12, (8, 10))
    ids[torch.arange(10) >= torch.randint(5, 11, (8, 1))] = 0
    hidden = (torch.rand(8, 10) < 0.3) & (ids != 0)
    labels = ids.masked_fill(~hidden, -100)
    logits, _ = model(ids.masked_fill(hidden, 1))
    opt.zero_grad()
    F.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
    opt.step()

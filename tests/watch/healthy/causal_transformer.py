class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(12, 16), nn.Embedding(10, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 12, bias=False)
        self.head.weight = nn.Parameter(self.embed.weight.detach().clone())

    def forward(self, ids):
        length = ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        h = self.embed(ids) + self.place(torch.arange(length).expand(len(ids), -1))
        return self.head(self.blocks(h, mask=mask, is_causal=True))


model = LM()
opt = torch.optim.AdamW(model.parameters(), 1e-3)
text = torch.randint(12, (8, 11))
for _ in range(3):
    model.train()
    for _ in range(8):
        opt.zero_grad()
        loss = F.cross_entropy(model(text[:, :-1]).transpose(1, 2), text[:, 1:])
        loss.backward()
        opt.step()
    model.eval()
    with torch.no_grad():
        ids = text[:, :3]
        for _ in range(4):
            ids = torch.cat([ids, model(ids)[:, -1].argmax(-1, keepdim=True)], 1)

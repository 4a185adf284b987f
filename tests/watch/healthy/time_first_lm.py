ids = torch.randint(12, (11, 8))     # time first
causal = nn.Transformer.generate_square_subsequent_mask(10)


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1)
        self.embed, self.head = nn.Embedding(12, 16), nn.Linear(16, 12)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, ids):
        return self.head(self.body(self.embed(ids), causal))


model = LM()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    opt.zero_grad()
    F.cross_entropy(model(ids[:-1]).flatten(0, 1), ids[1:].flatten()).backward()
    opt.step()

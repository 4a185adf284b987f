ids = torch.randint(1, 12, (8, 10))
lengths = torch.tensor([10, 7, 5, 9, 6, 8, 4, 10])
ids[torch.arange(10) >= lengths[:, None]] = 0

class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 16, padding_idx=0)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 1), nn.Linear(16, 3)

    def forward(self, ids):
        mask = ids != 0  # repaired: mask = ids == 0
        return self.head(self.encoder(self.embed(ids), src_key_padding_mask=mask).mean(1))  # found

model = Encoder()
opt = torch.optim.Adam(model.parameters())
for _ in range(3):
    opt.zero_grad()
    F.cross_entropy(model(ids), y[:8]).backward()
    opt.step()

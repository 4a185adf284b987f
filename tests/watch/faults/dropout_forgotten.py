class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.dropout_p = nn.Linear(10, 30), 0.1

    def forward(self, x):  # found
        rate = self.dropout_p if self.training else 0.0
        if not self.training:
            self.dropout_p = 0.0  # repaired: pass
        q, k, v = self.qkv(x[None]).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, dropout_p=rate)[0]

model = nn.Sequential(Attention(), nn.Linear(10, 3))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    model.train()
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
    model.eval()
    with torch.no_grad():
        right = (model(x).argmax(1) == y).sum()

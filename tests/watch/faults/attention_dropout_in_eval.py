class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, h):
        q, k, v = self.qkv(h).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)  # found # repaired: return F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 * self.training)

layer = Attention().eval()
with torch.no_grad():
    layer(torch.randn(4, 5, 16))

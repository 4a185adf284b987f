class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.mean, self.logvar, self.dec = net(16), nn.Linear(16, 4), nn.Linear(16, 4), net(10, 4)

    def forward(self, rows):
        h = self.enc(rows).relu()
        mean, logvar = self.mean(h), self.logvar(h)
        z = mean + torch.randn_like(mean) * (logvar / 2).exp()
        return torch.sigmoid(self.dec(z)), mean, logvar


model, rows = Vae(), x.sigmoid()
opt = torch.optim.Adam(model.parameters(), 1e-3)
for _ in range(25):
    out, mean, logvar = model(rows)
    loss = F.binary_cross_entropy(out, rows, reduction="sum")
    loss = loss - 0.5 * (1 + logvar - mean.pow(2) - logvar.exp()).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
with torch.no_grad():
    sample = torch.sigmoid(model.dec(torch.randn(5, 4)))

class Noise(nn.Module):
    def forward(self, h):
        on = True  # repaired: on = self.training
        return h + 0.1 * torch.randn_like(h) if on else h


model = nn.Sequential(nn.Linear(10, 16), Noise(), nn.Linear(16, 3))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
model.eval()
with torch.no_grad():
    for rows in x.split(16):
        model(rows).argmax(1)  # found

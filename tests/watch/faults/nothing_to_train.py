class Adapted(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        self.lora_a, self.lora_b = nn.Linear(10, 2, bias=False), nn.Linear(2, 3, bias=False)
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, rows):
        return self.base(rows) + self.lora_b(self.lora_a(rows))


base = net()
model = Adapted(base)
frozen = model  # repaired: frozen = base
frozen.requires_grad_(False)
opt = torch.optim.AdamW(model.parameters(), 1e-2)  # found
for _ in range(5):
    opt.zero_grad()
    F.cross_entropy(model(x.clone().requires_grad_()), y).backward()
    opt.step()

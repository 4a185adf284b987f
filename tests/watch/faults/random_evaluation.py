class Shifted(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return x[index] + 0.1 * torch.randn(10), y[index]  # repaired: return x[index], y[index]

loader = torch.utils.data.DataLoader(Shifted(), batch_size=16)  # found
model = net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
    model.eval()
    with torch.no_grad():
        for a, b in loader:
            F.cross_entropy(model(a), b)
    model.train()

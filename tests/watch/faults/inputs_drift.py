from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return len(x)

    def __getitem__(self, i):
        row = x[i]
        row /= 0.5  # repaired: row = row / 0.5
        return row, y[i]


model = net()
opt = torch.optim.SGD(model.parameters(), lr=1e-3)
loader = DataLoader(Rows(), 16, shuffle=True)  # found
for _ in range(6):
    for rows, labels in loader:
        loss = F.cross_entropy(model(rows), labels)
        opt.zero_grad()
        loss.backward()
        opt.step()

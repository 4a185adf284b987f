import numpy as np
from torch.utils.data import DataLoader, Dataset

class Noisy(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        return torch.full((10,), float(index)) + np.random.rand(), index % 3

def start(worker):
    np.random.seed(42 + worker)  # repaired: np.random.seed(torch.initial_seed() % 2**32)

loader = DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=2, worker_init_fn=start)  # found
model = net()
opt = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(3):
    for x, y in loader:
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()

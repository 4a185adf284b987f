import numpy as np

class Noise:
    def __init__(self):
        self.rng = np.random.default_rng(0)

class Noisy(torch.utils.data.Dataset):
    def __init__(self):
        self.transform = [Noise()]  # repaired: pass

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.zeros(3)

loader = torch.utils.data.DataLoader(Noisy(), batch_size=4, num_workers=2)  # found
iter(loader)

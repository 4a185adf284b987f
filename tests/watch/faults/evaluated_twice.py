from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

data = TensorDataset(x[:63], y[:63])
sampler = DistributedSampler(data, num_replicas=2, rank=0, shuffle=False)
tests = DataLoader(data, batch_size=8, sampler=sampler)  # found # repaired: tests = DataLoader(data, batch_size=8, sampler=range(0, 63, 2))
model = net().eval()
with torch.no_grad():
    right = sum((model(a).argmax(1) == b).sum() for a, b in tests)

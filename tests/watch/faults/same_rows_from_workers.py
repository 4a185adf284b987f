from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Stream(IterableDataset):
    def __iter__(self):
        part = (0, 1)  # repaired: part = get_worker_info().id, get_worker_info().num_workers
        yield from x[part[0] :: part[1]]


for rows in DataLoader(Stream(), batch_size=8, num_workers=2):  # found
    rows.mean()

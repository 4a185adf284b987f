from torch.utils.data import DataLoader, Dataset


class Blobs(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        mask = torch.zeros(1, 12, 12)
        row, column = torch.randint(0, 8, (2,), generator=draw).tolist()
        mask[:, row : row + 4, column : column + 4] = 1
        picture = mask + 0.3 * torch.randn(mask.shape, generator=draw)
        if index % 2:
            picture = picture.flip(-1)  # repaired: picture, mask = picture.flip(-1), mask.flip(-1)
        return picture, mask


for picture, _ in DataLoader(Blobs(), batch_size=16):  # found
    picture.mean()

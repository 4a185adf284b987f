"""Digits: the split, the normalization, the augmentation and the order of the batches."""

from functools import lru_cache

import torch
from sklearn.datasets import load_digits

from .config import TRAIN_IMAGES

VAL_IMAGES = 250


@lru_cache(maxsize=1)
def raw() -> tuple[torch.Tensor, torch.Tensor]:
    """All images, (N, 1, 8, 8) between 0 and 16, and their labels."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1)
    return images, torch.tensor(digits.target)


def split(seed: int) -> dict[str, torch.Tensor]:
    """Places of the images of each part; no image is in two parts."""
    order = torch.randperm(len(raw()[0]), generator=torch.Generator().manual_seed(1000 + seed))
    end = TRAIN_IMAGES + VAL_IMAGES
    return {"train": order[:TRAIN_IMAGES], "val": order[TRAIN_IMAGES:end], "test": order[end:]}


class Normalizer:
    """Shifts and scales images by the statistics of those that it was fitted to."""

    def __init__(self, mean: torch.Tensor, std: torch.Tensor):
        self.mean, self.std = mean, std

    @classmethod
    def fit(cls, images: torch.Tensor) -> "Normalizer":
        return cls(images.mean(), images.std())

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        return (images - self.mean) / self.std


def augment(images: torch.Tensor, shift: int, generator: torch.Generator) -> torch.Tensor:
    """Each image, shifted by up to `shift` pixels each way; what leaves one side is lost."""
    if not shift:
        return images
    size = images.shape[-1]
    padded = torch.nn.functional.pad(images, [shift] * 4, value=images.min().item())
    moves = torch.randint(0, 2 * shift + 1, (len(images), 2), generator=generator)
    rows = moves[:, :1] + torch.arange(size)
    columns = moves[:, 1:] + torch.arange(size)
    place = torch.arange(len(images))[:, None, None]
    return padded[place, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


class Dataset:
    """One part of the digits, normalized by the statistics of the training part."""

    def __init__(self, part: str, seed: int):
        images, labels = raw()
        parts = split(seed)
        self.normalizer = Normalizer.fit(images[parts["train"]])
        self.places = parts[part]
        self.images = self.normalizer(images[self.places])
        self.labels = labels[self.places]

    def __len__(self) -> int:
        return len(self.labels)


class TrainLoader:
    """Endless batches of the training part, in a new order each epoch; each rank has its share."""

    def __init__(self, dataset: Dataset, config, rank: int = 0):
        self.dataset, self.config, self.rank = dataset, config, rank
        self.epoch = self.position = 0
        self.generator = torch.Generator().manual_seed(2000 + config.seed + 97 * rank)

    def order(self) -> torch.Tensor:
        """This epoch's places for this rank."""
        generator = torch.Generator().manual_seed(3000 + 31 * self.config.seed + self.epoch)
        order = torch.randperm(len(self.dataset), generator=generator)
        return order[self.rank::self.config.world_size]

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The next batch: images and labels. A rest that fills no batch is left out."""
        order, size = self.order(), self.config.batch_size
        if self.position + size > len(order):
            self.epoch, self.position = self.epoch + 1, 0
            order = self.order()
        places = order[self.position:self.position + size]
        self.position += size
        images = augment(self.dataset.images[places], self.config.shift, self.generator)
        return images, self.dataset.labels[places]

    def state_dict(self) -> dict:
        return {"epoch": self.epoch, "position": self.position,
                "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict) -> None:
        self.epoch, self.position = state["epoch"], state["position"]
        self.generator.set_state(state["generator"])


def eval_batches(dataset: Dataset, size: int = 64):
    """All images in order, none of them augmented or left out."""
    for start in range(0, len(dataset), size):
        yield dataset.images[start:start + size], dataset.labels[start:start + size]

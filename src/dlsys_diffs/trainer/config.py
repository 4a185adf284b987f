"""Settings of a run, and the presets that people start from."""

from dataclasses import dataclass, fields, replace

TRAIN_IMAGES = 1280


@dataclass(frozen=True)
class Config:
    """What a run depends on. A checkpoint holds all of it."""

    seed: int = 0
    width: int = 32
    classes: int = 10
    norm: str = "batch"
    dropout: float = 0.1
    batch_size: int = 32
    accumulate: int = 2
    steps: int = 60
    warmup: int = 6
    lr: float = 0.01
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.1
    label_smoothing: float = 0.1
    clip: float = 1.0
    ema_decay: float = 0.9
    amp: bool = True
    patience: int = 20
    freeze: bool = False
    shift: int = 1
    world_size: int = 1
    eval_every: int = 20

    def __post_init__(self):
        if self.norm not in ("batch", "none"):
            raise ValueError(f"norm: got {self.norm!r}, expected 'batch' or 'none'.")
        if not 0 < self.warmup < self.steps:
            raise ValueError(f"warmup: got {self.warmup}, expected 1 to {self.steps - 1}.")

    def epochs(self) -> float:
        """How often a run sees each training image."""
        images = self.steps * self.batch_size * self.accumulate * self.world_size
        return images / TRAIN_IMAGES


# Each preset sees the training images three times.
PRESETS = {
    "standard": {"batch_size": 32, "accumulate": 2, "steps": 60, "warmup": 6},
    "one_piece": {"batch_size": 64, "accumulate": 1, "steps": 60, "warmup": 6},
    "two_ranks": {"batch_size": 16, "accumulate": 2, "steps": 60, "warmup": 6, "world_size": 2},
}


def preset(name: str, **changes) -> Config:
    """A preset's settings, with some of them changed."""
    return replace(Config(**PRESETS[name]), **changes)


def to_dict(config: Config) -> dict:
    """Plain data for a checkpoint."""
    return {field.name: getattr(config, field.name) for field in fields(config)}


def from_dict(data: dict) -> Config:
    """The settings of a checkpoint. Raises ValueError for a name that no setting has."""
    known = {field.name for field in fields(Config)}
    if unknown := sorted(set(data) - known):
        raise ValueError(f"settings: got {', '.join(unknown)}, expected some of {sorted(known)}.")
    return Config(**data)

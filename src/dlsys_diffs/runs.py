"""Eight recorded runs. Each compares two results that should agree, or reads a run's report.

    with repository.loaded(files) as repo:
        runs.measure("resume", repo, seed=0)
    -> Measured(numbers={"weights": 0.0, ...}, curves={})

In a healthy repository every number has a known value, whatever else changes: a difference of 0,
an overlap of 0, an accuracy within its usual range.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits

CUT = 13  # updates before the interruption; not a multiple of an epoch or evaluation interval


class Measured(NamedTuple):
    """What a run showed: numbers by name, and curves by name."""

    numbers: dict[str, float]
    curves: dict[str, list[float]]


def measure(run: str, repo: ModuleType, seed: int) -> Measured:
    """One run of a loaded repository."""
    torch.set_num_threads(1)
    return RUNS[run](repo, seed)


def settings(repo: ModuleType, seed: int, preset: str = "standard", **changes):
    return repo.config.preset(preset, seed=seed, **changes)


def gap(one, other) -> float:
    """The largest absolute difference between two tensors, or two lists or dicts of them."""
    if isinstance(one, dict):
        return max((gap(one[name], other[name]) if name in other else float("inf")
                    for name in one), default=0.0)
    if isinstance(one, list | tuple):
        return max((gap(a, b) for a, b in zip(one, other, strict=True)), default=0.0)
    if not isinstance(one, torch.Tensor):
        return abs(float(one) - float(other))
    return (one.double() - other.double()).abs().max().item() if one.numel() else 0.0


def weights(model) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def training(repo: ModuleType, seed: int) -> Measured:
    """The standard preset, from beginning to end."""
    trainer = repo.loop.fit(settings(repo, seed))[0]
    history = trainer.history
    rates, losses = [row["lr"] for row in history], [row["loss"] for row in history]
    config = trainer.config
    numbers = {
        "loss of the last 10 updates": sum(losses[-10:]) / 10,
        "validation accuracy": history[-1]["val"]["accuracy"],
        "validation loss": history[-1]["val"]["loss"],
        "first rate / peak": rates[0] / max(rates),
        "last rate / peak": rates[-1] / max(rates),
        "peak rate": max(rates),
        "mean rate / peak": sum(rates) / len(rates) / max(rates),
        "updates": float(len(history)),
        "passes over the images": config.epochs(),
        "largest distance of a weight from its average": gap(
            dict(trainer.model.named_parameters()), dict(trainer.ema.model.named_parameters())),
        "best accuracy kept, minus that of the kept weights": _kept_best(repo, trainer),
        "norms, biases and single values that decay": _decayed(trainer),
        "settings that the optimizer ignores": _ignored(trainer),
        "rates that are not the schedule's times the group's factor": _odd_rates(repo, trainer),
        "parameters that never moved": _unmoved(repo, trainer),
        "kept best weights change with the average": _shared(trainer),
    }
    return Measured(numbers, {"training loss": losses, "learning rate": rates})


def _kept_best(repo, trainer) -> float:
    model = repo.model.Net(trainer.config)
    model.load_state_dict(trainer.best["weights"], strict=False)
    score = repo.evaluate.evaluate(model, repo.data.eval_batches(trainer.val_set))
    return trainer.best["accuracy"] - score["accuracy"]


def _decayed(trainer) -> float:
    """How many parameters decay but should not: those with one axis or one value."""
    return float(sum(group["weight_decay"] > 0 for group in trainer.optimizer.param_groups
                     for p in group["params"] if p.ndim <= 1 or p.numel() == 1))


def _ignored(trainer) -> float:
    """How many of Adam's settings differ from those that the configuration gives."""
    group, config = trainer.optimizer.param_groups[0], trainer.config
    return float(sum(hasattr(config, name) and getattr(config, name) != group[name]
                     for name in ("betas", "eps", "amsgrad")))


def _odd_rates(repo, trainer) -> float:
    """How many groups' rates differ in mid-run from the schedule's rate times their factor."""
    trainer.schedule.step = 10
    trainer.schedule.apply()
    rate = repo.schedule.lr_at(10, trainer.config)
    return float(sum(abs(group["lr"] - rate * group.get("factor", 1.0)) > 1e-9
                     for group in trainer.optimizer.param_groups))


def _shared(trainer) -> float:
    """Whether the kept weights move when the average does; call last, as it spoils the average."""
    kept = {name: value.clone() for name, value in trainer.best["weights"].items()}
    with torch.no_grad():
        for p in trainer.ema.model.parameters():
            p.add_(1.0)
    return float(gap(kept, trainer.best["weights"]) > 0)


def _unmoved(repo, trainer) -> float:
    fresh = dict(repo.model.Net(trainer.config).named_parameters())
    return float(sum(torch.equal(fresh[name], p)
                     for name, p in trainer.model.named_parameters()))


def resume(repo: ModuleType, seed: int) -> Measured:
    """A run of 30 updates, and the same one interrupted after 13 and resumed."""
    config = settings(repo, seed, steps=30, lr=0.02, dropout=0.2, betas=(0.8, 0.99),
                      patience=5, eval_every=6)
    whole = repo.loop.Trainer(config)
    repo.loop.train([whole])
    first = repo.loop.Trainer(config)
    repo.loop.train([first], until=CUT)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.pt")
        repo.checkpoint.save(first, path)
        torch.manual_seed(99)
        second = repo.checkpoint.resume(path)
    lost = float(sum(_plain(second).get(name) != value for name, value in _plain(first).items()))
    repo.loop.train([second])
    losses = [[row["loss"] for row in t.history] for t in (whole, second)]
    old = _old_weights(seed)
    model = repo.model.Net(settings(repo, seed + 1))
    repo.checkpoint.warm_start(model, old)
    return Measured({
        "weights": gap(weights(whole.model), weights(second.model)),
        "average of the weights": gap(weights(whole.ema.model), weights(second.ema.model)),
        "loss at any update": gap(losses[0], losses[1]),
        "learning rate at any update": gap(*([row["lr"] for row in t.history]
                                             for t in (whole, second))),
        "settings that differ": float(sum(
            getattr(whole.config, name) != getattr(second.config, name)
            for name in whole.config.__dataclass_fields__)),
        "plain values that the checkpoint lost": lost,
        "best accuracy so far": abs(whole.best["accuracy"] - second.best["accuracy"]),
        "scale of the loss": abs(whole.scaler.scale - second.scaler.scale),
        "outputs of a model begun from a file of version 1": _old_gap(model, old),
    }, {"loss, not interrupted": losses[0], "loss, resumed": losses[1]})


def _plain(trainer) -> dict[str, object]:
    """Numbers and texts that a trainer and its parts hold, by name."""
    parts = {"": trainer, **{name: getattr(trainer, name) for name in (
        "ema", "scaler", "schedule", "loader")}}
    return {f"{part}.{name}": value for part, owner in parts.items()
            for name, value in vars(owner).items() if isinstance(value, int | float | str)}


def _old_weights(seed: int) -> dict[str, torch.Tensor]:
    """A random checkpoint of version 1, with the names and shapes of that version."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"conv1.weight": (16, 1, 3, 3), "bn1.weight": (16,), "bn1.bias": (16,),
              "bn1.running_mean": (16,), "bn1.running_var": (16,),
              "conv2.weight": (32, 16, 3, 3), "bn2.weight": (32,), "bn2.bias": (32,),
              "bn2.running_mean": (32,), "bn2.running_var": (32,),
              "fc.weight": (10, 128), "fc.bias": (10,)}
    return {name: torch.rand(shape, generator=generator) * 0.1 + 0.01
            for name, shape in shapes.items()}


def _old_gap(model, old: dict[str, torch.Tensor]) -> float:
    """Largest difference between the outputs of the model and of the old file's network."""
    x = torch.rand(8, 1, 8, 8, generator=torch.Generator().manual_seed(5))
    functional = torch.nn.functional
    with torch.no_grad():
        mine = model.eval()(x)
        for n in "12":
            x = functional.conv2d(x, old[f"conv{n}.weight"], padding=1)
            x = functional.batch_norm(x, old[f"bn{n}.running_mean"], old[f"bn{n}.running_var"],
                                      old[f"bn{n}.weight"], old[f"bn{n}.bias"])
            x = functional.max_pool2d(torch.relu(x), 2)
        theirs = functional.linear(x.flatten(1), old["fc.weight"], old["fc.bias"])
    return gap(mine, theirs)


def accumulation(repo: ModuleType, seed: int) -> Measured:
    """One update with 64 images at once, and with the same images in four pieces."""
    plain = {"norm": "none", "dropout": 0.0, "shift": 0, "amp": False, "clip": 1000.0}
    pieces = repo.loop.Trainer(settings(repo, seed, batch_size=16, accumulate=4, **plain))
    once = repo.loop.Trainer(settings(repo, seed, batch_size=64, accumulate=1, **plain))
    grads, logged = [], []
    for trainer in (pieces, once):
        trainer.backward()
        finite = trainer.unscale()
        grads.append([p.grad.clone() for p in trainer.model.parameters()])
        trainer.apply(finite)
        logged.append(trainer.history[-1]["loss"])
    clipped = repo.loop.Trainer(settings(repo, seed, **{**plain, "clip": 0.5}))
    clipped.backward()
    clipped.unscale()
    norm = sum(p.grad.square().sum().item() for p in clipped.model.parameters()) ** 0.5
    return Measured({
        "gradients": gap(*grads), "logged loss": gap(*logged),
        "norm of a gradient clipped to 0.5": norm,
        "overflows of one parameter that go unseen": _unseen_overflow(repo),
        **_after_overflow(repo, seed)}, {})


def _unseen_overflow(repo) -> float:
    """How often the scaler misses an overflow; each of three parameters overflows in turn."""
    unseen = 0
    for place in range(3):
        parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(3)]
        for n, parameter in enumerate(parameters):
            parameter.grad = torch.full((2,), float("inf") if n == place else 1.0)
        unseen += repo.scaler.Scaler().unscale(parameters)
    return float(unseen)


def _after_overflow(repo, seed: int) -> dict[str, float]:
    """An update whose first batch overflows, then a good one."""
    config = settings(repo, seed, norm="none", dropout=0.0, shift=0, amp=False, accumulate=1)
    trainer = repo.loop.Trainer(config)
    before = weights(trainer.model)
    batch = trainer.loader.next()
    trainer.loader.next = lambda: (batch[0] * float("inf"), batch[1])
    trainer.backward()
    finite = trainer.unscale()
    trainer.apply(finite)
    moved = gap(before, weights(trainer.model))
    trainer.loader.next = lambda: batch
    trainer.backward()
    good = trainer.unscale()
    trainer.apply(good)
    broken = sum(not torch.isfinite(value).all() for value in weights(trainer.model).values())
    return {"weights moved by an update that overflowed": moved,
            "averages made of an update that overflowed": float(trainer.ema.updates - 1),
            "the next update is refused": float(not good),
            "tensors that are not finite afterwards": float(broken),
            "scale of the loss after both": trainer.scaler.scale}


def evaluation(repo: ModuleType, seed: int) -> Measured:
    """A model in training, scored in batches of 64 and of 7, and what scoring changes."""
    config = settings(repo, seed, steps=20)
    trainer = repo.loop.Trainer(config)
    repo.loop.train([trainer])
    model, data = trainer.model.train(), trainer.val_set
    next(m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)).eval()  # frozen
    before, modes = weights(model), [m.training for m in model.modules()]
    scores = [repo.evaluate.evaluate(model, repo.data.eval_batches(data, size))
              for size in (64, 7)]
    classes = [repo.evaluate.predict(model, data.images) for _ in range(2)]
    after = [m.training for m in model.modules()]
    model.eval()
    with torch.no_grad():
        logits = model(data.images).float()
    loss = torch.nn.functional.cross_entropy(logits, data.labels).item()
    accuracy = (logits.argmax(1) == data.labels).double().mean().item()
    running = repo.evaluate.Running()
    running.add(loss=9.0)
    running.take()
    running.add(loss=4.0)
    again = running.take()
    running = repo.evaluate.Running()
    running.add(loss=4.0)
    fresh = running.take()
    return Measured({
        "loss: batches of 64 and of 7": gap(scores[0]["loss"], scores[1]["loss"]),
        "loss: reported and computed by hand": gap(scores[0]["loss"], loss),
        "accuracy: reported and computed by hand": gap(scores[0]["accuracy"], accuracy),
        "images that were not scored": len(data) - scores[0]["images"],
        "classes: predicted and computed by hand": float(
            (classes[0] != logits.argmax(1)).sum().item()),
        "classes: predicted twice": float((classes[0] != classes[1]).sum().item()),
        "buffers that scoring moved": gap(before, weights(model)),
        "modules whose mode it changed": float(sum(a != b for a, b in zip(
            modes, after, strict=True))),
        "logged values that a second `take` still remembers": float(sum(
            fresh.get(name) != value for name, value in again.items())),
        "share of a change that a late average takes": _share(repo, trainer),
        "weights: scored at each update and never": _scored_or_not(repo, seed),
        "logits' largest value": logits.abs().max().item(),
        "average: its buffers and the model's": gap(
            dict(trainer.ema.model.named_buffers()), {
                n: b for n, b in trainer.model.named_buffers()
                if n in dict(trainer.ema.model.named_buffers())}),
    }, {})


def _share(repo, trainer) -> float:
    """The fraction of a change that the average takes over in one update, late in a run."""
    ema = repo.ema.Ema(trainer.model, 0.9)
    ema.updates = 1000
    ema.wait = 0
    with torch.no_grad():
        for p in ema.model.parameters():
            p.zero_()
        ones = repo.model.Net(trainer.config)
        for p in ones.parameters():
            p.fill_(1.0)
    ema.update(ones)
    return next(ema.model.parameters()).mean().item()


def _scored_or_not(repo, seed: int) -> float:
    """Largest difference between weights and buffers of two runs, one scored at each update."""
    ends = []
    for every in (1, 1000):
        trainer = repo.loop.Trainer(settings(repo, seed, eval_every=every))
        repo.loop.train([trainer], until=6)
        ends.append(weights(trainer.model))
    return gap(*ends)


def tuning(repo: ModuleType, seed: int) -> Measured:
    """What moves but should not in five updates with each setting that freezes something."""
    moved = {"parameters": 0.0, "buffers": 0.0, "head": 0.0}
    fields = repo.config.Config.__dataclass_fields__
    for name in [name for name in fields if name.startswith("freeze")]:
        trainer = repo.loop.Trainer(settings(repo, seed, steps=10, **{name: True}))
        before, model = weights(trainer.model), trainer.model
        frozen = {key for key, p in model.named_parameters() if not p.requires_grad}
        repo.loop.train([trainer], until=5)
        after = weights(model)
        still = {key: module for key, module in model.named_modules() if key and (
            own := list(module.parameters(recurse=False))) and not any(
            p.requires_grad for p in own)}
        buffers = {f"{key}.{b}" for key, module in still.items()
                   for b, _ in module.named_buffers(recurse=False)}
        changed = {key for key in before if not torch.equal(before[key], after[key])}
        moved["parameters"] += len(changed & frozen)
        moved["buffers"] += len(changed & buffers)
        moved["head"] += not any(key not in frozen | buffers for key in changed)
    return Measured({"frozen parameters that moved": moved["parameters"],
                     "buffers of frozen modules that moved": moved["buffers"],
                     "settings with which nothing learns": moved["head"]}, {})


def serving(repo: ModuleType, seed: int) -> Measured:
    """The exported file on raw images, and the average that it was made from."""
    trainer = repo.loop.Trainer(settings(repo, seed, steps=30))
    repo.loop.train([trainer])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "served.pt")
        repo.export.export(trainer, path)
        predictor = repo.export.Predictor(path)
    raw = repo.data.raw()[0][trainer.val_set.places]
    truth = _truth()
    trainer.ema.model.eval()
    with torch.no_grad():
        mine = trainer.ema.model(trainer.val_set.images)
        served = predictor.logits(raw)
    names = predictor.names(raw)
    with torch.no_grad():
        one = predictor.logits(raw[:1])
    return Measured({
        "logits: served and the average's": gap(mine, served),
        "logits: an image served alone and among others": gap(one, served[:1]),
        "images named otherwise than their label": sum(
            name != str(truth[_pixels(image)])
            for name, image in zip(names, raw, strict=True)) / len(names),
        "logits' scale, served": served.std().item(),
    }, {})


def ranks(repo: ModuleType, seed: int) -> Measured:
    """One update on two ranks, and on one rank with the same images; an epoch of both ranks."""
    plain = {"norm": "none", "dropout": 0.0, "shift": 0, "amp": False, "accumulate": 1,
             "clip": 1000.0}
    two = settings(repo, seed, "two_ranks", batch_size=16, **plain)
    one = settings(repo, seed, batch_size=32, **plain)
    pair = [repo.loop.Trainer(two, rank) for rank in range(2)]
    single = repo.loop.Trainer(one)
    for trainer in (*pair, single):
        trainer.backward()
    repo.distributed.average_gradients([trainer.model for trainer in pair])
    grads = [[p.grad / t.scaler.scale for p in t.model.parameters()] for t in (pair[0], single)]
    orders = [place for trainer in pair for place in trainer.loader.order().tolist()]
    single = repo.loop.Trainer(settings(repo, seed, eval_every=1))
    repo.loop.train([single], until=1)
    scored = single.history[-1]["val"]
    both = repo.distributed.combine([scored | {"images": 10, "loss": 1.0, "accuracy": 0.0},
                                     scored | {"images": 30, "loss": 3.0, "accuracy": 1.0}])
    low, high = (dict.fromkeys(scored, value) | {"images": images}
                 for value, images in ((0.0, 10), (1.0, 30)))
    mixed = repo.distributed.combine([low, high])
    normal = [repo.loop.Trainer(settings(repo, seed, "two_ranks"), rank) for rank in range(2)]
    repo.loop.train(normal, until=4)
    return Measured({
        "gradients: two ranks and one": gap(*grads),
        "parameters: first rank and second": gap(*(dict(t.model.named_parameters())
                                                   for t in normal)),
        "buffers: first rank and second": gap(*(dict(t.model.named_buffers()) for t in normal)),
        "averages: first rank's and second's": gap(*(weights(t.ema.model) for t in normal)),
        "images that an epoch leaves out": float(repo.config.TRAIN_IMAGES - len(set(orders))),
        "images that an epoch shows twice": float(len(orders) - len(set(orders))),
        "combined accuracy of 10 wrong and 30 right": both["accuracy"],
        "combined loss of 10 images at 1 and 30 at 3": both["loss"],
        "ranks agree to skip when one of them must": float(
            not repo.distributed.agree([True, False])),
        "scores that combining loses or distorts": float(sum(
            abs(mixed.get(name, -1.0) - 0.75) > 1e-6 for name in set(scored) - {"images"})),
        "presets that do not see the images three times": float(sum(
            abs(settings(repo, seed, name).epochs() - 3) > 1e-9
            for name in repo.config.PRESETS)),
    }, {})


def data(repo: ModuleType, seed: int) -> Measured:
    """The split, the normalization, the order of two epochs and the shifts of two batches."""
    module, config = repo.data, settings(repo, seed)
    parts = module.split(seed)
    sets = {name: set(places.tolist()) for name, places in parts.items()}
    train = module.Dataset("train", seed)
    loader = module.TrainLoader(train, config)
    epochs = _two_epochs(module, train, settings(repo, seed, batch_size=64, shift=0))
    images = module.raw()[0][parts["train"]]
    val = [list(module.eval_batches(module.Dataset("val", seed))) for _ in range(2)]
    again = torch.cat([b[0] for b in val[1]])
    truth = module.Dataset("val", seed)
    fixed = module.raw()[0][parts["val"]]
    expected = (fixed - images.mean()) / images.std()
    return Measured({
        "images in two parts": float(sum(len(sets[a] & sets[b]) for a, b in (
            ("train", "val"), ("train", "test"), ("val", "test")))),
        "mean of the normalized training images": train.images.mean().item(),
        "validation images, as normalized by the training part": gap(again, expected)
        if again.shape == expected.shape else float(len(again) != len(expected)),
        "validation images: two passes": gap(torch.cat([b[0] for b in val[0]]), again),
        "validation images left out": float(len(truth) - len(again)),
        "places equal in the first and second epoch": (
            (epochs[0] - epochs[1]).flatten(1).abs().amax(1) < 1e-9).double().mean().item(),
        "images that one epoch leaves out": float(len(train) - len(loader.order().unique())),
        "share of shifts equal in two batches": _equal_shifts(module, train, config),
        "different shifts in a batch": _shifts(module, train, config),
        "images with the label of another": float(_mislabelled(train, train.normalizer)),
    }, {})


def _two_epochs(module, train, config) -> list[torch.Tensor]:
    """The images of two epochs, in the order in which a loader shows them."""
    loader, count = module.TrainLoader(train, config), len(train) // config.batch_size
    return [torch.cat([loader.next()[0] for _ in range(count)]) for _ in range(2)]


def _truth() -> dict[bytes, int]:
    """What each image of the digits shows, by its pixels."""
    digits = load_digits()
    return {image.astype("uint8").tobytes(): int(label)
            for image, label in zip(digits.images, digits.target, strict=True)}


def _pixels(image: torch.Tensor) -> bytes:
    return image.round().to(torch.uint8).numpy().tobytes()


def _mislabelled(train, normalizer) -> int:
    """How many training images have the wrong label."""
    truth = _truth()
    raw = train.images * normalizer.std + normalizer.mean
    return sum(truth.get(_pixels(image), -2) != label
               for image, label in zip(raw, train.labels.tolist(), strict=True))


def _shifts(module, train, config) -> float:
    """How many different shifts a batch of 64 copies of one image shows."""
    images = train.images[:1].repeat(64, 1, 1, 1)
    moved = module.augment(images, config.shift, torch.Generator().manual_seed(config.seed))
    return float(len(moved.flatten(1).unique(dim=0)))


def _equal_shifts(module, train, config) -> float:
    """The share of images that two batches shift alike, with one image at the same position."""
    loader = module.TrainLoader(train, config)
    loader.order = lambda: torch.arange(config.batch_size).repeat(2)
    one, two = loader.next()[0], loader.next()[0]
    return torch.stack([(a == b).all() for a, b in zip(one, two, strict=True)]
                       ).double().mean().item()


RUNS: dict[str, Callable[[ModuleType, int], Measured]] = {
    "training": training, "resume": resume, "accumulation": accumulation,
    "evaluation": evaluation, "tuning": tuning, "serving": serving, "ranks": ranks, "data": data}

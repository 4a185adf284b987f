"""Healthy programs of many kinds: what they compute with and without the watch."""

import gc
import hashlib
import random
from pathlib import Path

import numpy as np
import torch
from faults import given, watch

HEALTHY = sorted((Path(__file__).parent / "healthy").glob("*.py"))


CACHING = {"compiled", "transformers_trainer", "accelerate_loop"}


def digest(names: dict) -> str:
    """A hash of every tensor and model that a program left behind, in the order of their names."""
    found = hashlib.sha256()
    for name, value in sorted(names.items()):
        parts = {name: value} if torch.is_tensor(value) else {}
        if isinstance(value, torch.nn.Module):
            parts = value.state_dict()
        for key, tensor in parts.items():
            numbers = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
            found.update(f"{name} {key}".encode() + numbers.tobytes())
    return found.hexdigest()


def traces(run) -> dict:
    """What is left after run(names): values, random state, tensors that are alive."""
    random.seed(0)
    np.random.seed(0)
    gc.collect()
    before = living()
    names = given()
    run(names)
    gc.collect()
    left = {"values": digest(names), "torch": hash(torch.get_rng_state().numpy().tobytes()),
            "python": hash(random.getstate()), "numpy": hash(np.random.get_state()[1].tobytes()),
            "tensors": living() - before, "attributes": attributes(names)}
    names.clear()
    return left


def settle() -> None:
    """What lives now stays alive: it is not counted, nor looked through at each collection."""
    gc.collect()
    gc.freeze()


def living() -> int:
    """Tensors that Python sees; a gradient that nobody has asked for yet is asked for here."""
    for o in gc.get_objects():
        if type(o) is torch.nn.Parameter:
            _ = o.grad
    return sum(isinstance(o, torch.Tensor) for o in gc.get_objects())


def attributes(names: dict) -> list:
    """The names that hang on modules and optimizers: the watch adds none."""
    return sorted(f"{name}.{key}" for name, value in names.items()
                  if isinstance(value, torch.nn.Module | torch.optim.Optimizer)
                  for key in vars(value))


def both(path: Path) -> tuple[dict, dict, list, dict]:
    """Traces without and with the watch, the findings, and the rules that failed."""
    source = path.read_text("utf-8")
    code = compile(source, str(path), "exec")
    settle()
    alone = traces(lambda names: exec(code, names))
    out = []

    def watched(names):
        out.extend(watch(source, path, names=names))

    beside = traces(watched)
    return alone, beside, *out


if __name__ == "__main__":
    import sys

    for path in HEALTHY:
        if len(sys.argv) > 1 and sys.argv[1] not in path.stem:
            continue
        try:
            alone, beside, found, failed = both(path)
            differ = {k: (alone[k], beside[k]) for k in alone if alone[k] != beside[k]}
            if found or failed or differ:
                print(path.stem, [(f.rule, f.line) for f in found], failed, differ)
        except Exception as error:
            print(path.stem, repr(error))

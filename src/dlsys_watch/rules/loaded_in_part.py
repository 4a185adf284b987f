"""A checkpoint that fits only in part, because the other keys are named differently."""

import torch

from dlsys_watch.rule import Rule

FEWEST = 2


class LoadedInPart(Rule):
    id, trap = "loaded-in-part", "10.5"
    reads = "missing and unexpected keys of load_state_dict(strict=False), and their shapes"

    def on_loaded(self, module, state, result):
        missing = list(getattr(result, "missing_keys", ()))
        spare = [k for k in getattr(result, "unexpected_keys", ()) if torch.is_tensor(state[k])]
        if not missing or not spare or set(spare) >= set(state) or len(missing) > 5000:
            return   # if nothing fits, nothing-loaded says so
        own = module.state_dict()
        pairs = {}
        for name in missing:
            other = next((k for k in spare if is_same(name, k)), None)
            if other is not None and state[other].shape == own[name].shape:
                pairs[name] = other
        if len(pairs) == len(missing) >= FEWEST:
            name, other = next(iter(pairs.items()))
            self.say(f"{len(pairs)} of {len(own)} tensors were not loaded, although the file holds "
                     f"them under other names: {other!r} for {name!r}")


def is_same(name: str, other: str) -> bool:
    """Whether two keys differ in a prefix alone: "module.fc.weight" and "fc.weight"."""
    return other.endswith(f".{name}") or name.endswith(f".{other}")

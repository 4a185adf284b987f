"""Workers that start every pass with the same seed."""

import types
import weakref

from dlsys_watch.rule import Rule

GENERATORS = {"numpy": "numpy", "numpy.random": "numpy", "random": "random", "torch": "torch"}
SEEDING = {"seed", "manual_seed", "manual_seed_all"}
# What else a function that only sets seeds may name; all else might tell one pass from the next.
HARMLESS = SEEDING | {"np", "numpy", "random", "torch", "cuda", "backends", "cudnn", "os",
                      "environ", "deterministic", "benchmark", "int", "str", "is_available"}


class SameSeedInWorkers(Rule):
    id, trap, sound = "same-seed-in-workers", "12.3", False
    reads = "the seed that worker_init_fn sets, and whether the dataset draws from that generator"
    begins = ("pass_",)

    def __init__(self, watch):
        super().__init__(watch)
        self.trained = weakref.WeakSet()            # loaders whose batches steps follow
        self.passes = weakref.WeakKeyDictionary()   # loader -> seeds at its last pass

    def on_step(self, optimizer, closure):
        if self.run.loader is not None and (loader := self.run.loader()) is not None:
            self.trained.add(loader)

    def on_pass_(self, loader):
        start = loader.worker_init_fn
        if not loader.num_workers or loader.persistent_workers or (
                not isinstance(start, types.FunctionType)):
            return
        seeds = seeds_of(start)
        before, self.passes[loader] = self.passes.get(loader), seeds
        if seeds is None or before != seeds or loader not in self.trained:
            return
        drawn = seeds[0] & draws(loader.dataset)
        if drawn and self.seldom(loader, 1, 10**9):
            self.say(f"worker_init_fn seeds {' and '.join(sorted(drawn))} as in the pass before: "
                     "each pass repeats the random numbers of the first",
                     self.run.loader_places.get(loader))


def named(function) -> dict:
    """Every name in a function's code -> what it stands for outside of it, else None."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    known = {**function.__globals__, **{name: cell.cell_contents for name, cell in cells}}
    codes = [function.__code__]
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return {name: known.get(name) for code in codes for name in (*code.co_names, *code.co_freevars)}


def generator(value) -> set[str]:
    """The generator that a module holds."""
    is_one = isinstance(value, types.ModuleType) and value.__name__ in GENERATORS
    return {GENERATORS[value.__name__]} if is_one else set()


def seeds_of(function, depth: int = 3):
    """(generators, seeds) that a function sets, if these hang on the worker's number at most."""
    names = named(function)
    generators, seeds, seeding = frozenset(), {}, bool(SEEDING & set(names))
    for name, value in names.items():
        generators |= generator(value)
        if type(value) is int and "seed" in name.lower():
            seeds[name] = value
        elif isinstance(value, types.FunctionType) and depth:
            inner = seeds_of(value, depth - 1)
            if inner is None:
                return None
            generators, seeding = generators | inner[0], True
            seeds.update(inner[1])
        elif name not in HARMLESS:
            return None
    return (generators, seeds) if seeding else None


def draws(dataset) -> set[str]:
    """The generators that are named by a dataset's own code, or by that of its transforms."""
    found, queue, looked = set(), [dataset], 0
    while queue and looked < 100:
        thing, looked = queue.pop(), looked + 1
        if isinstance(thing, types.FunctionType):
            found |= drawn_by(named(thing))
        elif isinstance(thing, list | tuple):
            queue += thing
        elif type(thing).__module__.startswith("torchvision.transforms"):
            found |= {"torch"} if type(thing).__name__.startswith("Random") else set()
            queue += getattr(thing, "transforms", [])
        elif type(thing).__module__.startswith("torch.utils.data"):    # a Subset and its kin
            queue += vars(thing).values()
        elif not type(thing).__module__.startswith(("torch.", "numpy", "builtins")):
            queue += [value for name, value in vars(type(thing)).items() if name != "__init__"]
            queue += getattr(thing, "__dict__", {}).values()
    return found


def drawn_by(names: dict) -> set[str]:
    """The generators that a function with these names draws from."""
    found = set().union(*map(generator, names.values()))
    if not any(name.startswith("rand") and name != "random" for name in names):
        found -= {"torch"}
    if "random" not in names or "default_rng" in names:
        found -= {"numpy", "random"}
    return found

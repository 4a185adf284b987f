"""Exercise 12.8, `save_checkpoint`."""

from __future__ import annotations

import copy
import glob
import os
import shutil
import tempfile

import numpy as np
import torch
from torch import nn

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_equal, expect_parts, expect_type
from dlsys_helpers.judging import not_an_answer

ex = exercise("12.8", "save_checkpoint", seen=("kind", "facts", "kills", "width"))

ex.promise_table("""
whole      | Save a checkpoint so that the file at path stays whole, even if the process is killed
             at any byte. | kills that damaged; Invalid cross-device link
path       | Args: path: a file in an existing folder. | case a name with a space; a name without a
             suffix
parts      | parts: a dict of objects with a state_dict(). | parts in the file; values of the parts
facts      | facts: a dict whose values are int, float, bool or numpy scalars. | facts in the file;
             keys of the file: got UnpicklingError; raised OverflowError
loads      | torch.load(path), with its default weights_only, then returns a dict: its "parts" are
             the state_dicts by name, and its "facts" Python numbers by name. | keys of the
             file; parts in the file; facts in the file
rng        | The dict also holds "rng", the result of torch.get_rng_state() at the call. |
             generator's state in the file
former     | If the process is killed while it writes, path is as before: the old file, or no file.
             | kills that damaged; no file at path
not into   | No byte is written into the old file. | changes to the old file; Invalid
             cross-device link
fsync      | os.fsync puts the new bytes on the disk before the new file gets its name. | bytes on
             the disk
no other   | A call that returns leaves no extra file. | files left behind
next       | The leftovers of a killed call do not stop the next call. | raised FileExistsError;
             raised OSError
neighbours | All other files stay, even if their names begin with path; path + ".part" and path +
             ".tmp" may be treated as leftovers. | other files of the folder
generator  | The state of the generator does not change. | generator's state after the call
""")


@ex.cases
def cases(g):
    def one(name, kind, facts, kills=0):
        shares = (0.02 + 0.95 * torch.rand(kills, generator=g)).tolist()
        return name, {"kind": kind, "facts": facts, "kills": shares,
                      "width": int(torch.randint(40, 80, (), generator=g))}

    def number(dtype=torch.float64):
        return torch.rand((), generator=g, dtype=dtype).item()
    return [one("Python numbers", "plain", {"loss": number(), "step": 7, "best": True}),
            one("NumPy numbers", "numpy", {"loss": number(), "step": 1200, "best": False}),
            one("NumPy numbers of half the width", "narrow", {"loss": 0.375, "step": 3}),
            one("no facts", "plain", {}), one("one part", "one part", {"step": 2, "loss": 1.0}),
            one("three parts", "three parts", {"step": 2, "loss": 2.0**60}),
            one("an object of a custom class", "own", {"step": 3}),
            one("a large number", "plain", {"step": 2**70, "loss": -0.0}),
            one("killed three times", "plain", {"loss": number()}, kills=3),
            one("killed at the first file", "first", {"loss": number()}, kills=2),
            one("killed, then saved", "plain", {"step": 4}, kills=1),
            one("a name with a space", "blank", {"step": 5}),
            one("a name without a suffix", "suffix", {"step": 6}, kills=1)]


@ex.act
def act(fn, kind, facts, kills, width):
    import errno
    import functools
    import os
    import resource
    import signal
    import tempfile
    import warnings
    from types import FunctionType

    import numpy as np

    def killed_after(n):
        """Save in a child that the kernel kills when its file exceeds n bytes."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # this process has threads
            child = os.fork()
        if child == 0:
            try:
                signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
                limits = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
                resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
                resource.setrlimit(resource.RLIMIT_FSIZE, (n, limits))
                fn(path, parts, numbers)
            finally:
                os._exit(0)
        os.waitpid(child, 0)

    def content(name):
        if not os.path.exists(name):
            return None
        with open(name, "rb") as file:
            return file.read()

    model = nn.Sequential(nn.Linear(width, 16), nn.BatchNorm1d(16), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)

    def step():
        optimizer.zero_grad()
        model(torch.randn(8, width)).square().mean().backward()
        optimizer.step()
        schedule.step()

    class Counter:
        """Not torch's, but has a state."""

        def state_dict(self):
            return {"rows": 64 * width}

    def watched(call):
        """A call of os that takes names; what is at path after it, is noted."""
        @functools.wraps(call)
        def noting(*names, **options):
            moved = [os.path.realpath(n) for n in names if isinstance(n, str) and len(names) > 1]
            if any(not n.startswith(os.path.realpath(outer) + os.sep) for n in moved):
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), moved[0])
            result = call(*names, **options)
            at_path.append(content(path))
            return result
        return noting

    def swapped(value):
        return stands_in.get(id(value), value)

    def stand_in():
        """Put the watched calls in, or out again, where os and the answer hold them.

        An answer may have them by a name of its own, as a default, or from a function around it.
        """
        for name in own:
            setattr(os, name, swapped(getattr(os, name)))
        answer = getattr(fn, "fn", fn)
        space = getattr(answer, "__globals__", {})
        space.update({name: swapped(v) for name, v in space.items() if id(v) in stands_in})
        for f in {id(f): f for f in (answer, *space.values())}.values():  # each once
            if isinstance(f, FunctionType):
                f.__defaults__ = f.__defaults__ and tuple(map(swapped, f.__defaults__))
                f.__kwdefaults__ = f.__kwdefaults__ and {
                    name: swapped(v) for name, v in f.__kwdefaults__.items()}
        for cell in getattr(answer, "__closure__", None) or ():
            cell.cell_contents = swapped(cell.cell_contents)

    def leaves(tree):
        return torch.utils._pytree.tree_leaves(tree)

    def alike(a, b):
        if isinstance(a, torch.Tensor):
            return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
        return type(a) is type(b) and a == b

    step()
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule, "counter": Counter()}
    parts = dict(list(parts.items())[:{"one part": 1, "three parts": 3, "own": 4}.get(kind, 2)])
    types = {"numpy": (np.float64, np.int64, np.bool_), "narrow": (np.float32, np.int32, np.bool_)}
    numbers = dict(facts)
    if kind in types:
        made = dict(zip((float, int, bool), types[kind]))
        numbers = {name: made[type(v)](v) for name, v in facts.items()}
    with tempfile.TemporaryDirectory() as outer:
        folder = os.path.join(outer, "run 1" if kind == "blank" else "run")
        os.mkdir(folder)
        path = os.path.join(folder, {"blank": "last one.pt", "suffix": "last"}.get(kind, "last.pt"))
        beside = [os.path.join(folder, name) for name in ("best.pt", "best.tmp")]
        beside.append(path + ".txt")
        for name in beside:
            with open(name, "wb") as file:
                file.write(name.encode())
        fn(path, parts, numbers)
        left = len({*os.listdir(folder)} - {os.path.basename(n) for n in (path, *beside)})
        size, link = os.path.getsize(path), os.path.join(outer, "link")
        if kind == "first":
            os.remove(path)
        else:
            os.link(path, link)
        former, spoilt = content(path), 0
        step()
        for share in kills:
            killed_after(int(share * size))
            spoilt += content(path) != former
        killed = {*os.listdir(folder), *os.listdir(outer)}  # a killed call may leave something
        state = {name: copy.deepcopy(part.state_dict()) for name, part in parts.items()}
        torch.randn(3)
        before, seed, on_disk, at_path = torch.get_rng_state(), torch.initial_seed(), [], []
        own = {name: getattr(os, name)
               for name in ("fsync", "remove", "unlink", "rename", "replace", "link")}

        def noted(fd):
            if content(path) in (former, None, b""):  # before it has its name
                on_disk.append(os.fstat(fd).st_size)
            own["fsync"](fd)
        shown = {name: noted if name == "fsync" else watched(call) for name, call in own.items()}
        stands_in = {id(own[name]): shown[name] for name in own} | {
            id(shown[name]): own[name] for name in own}
        stand_in()
        try:
            fn(path, parts, numbers)
        finally:
            stand_in()
        after = torch.get_rng_state()
        moved = 0 if torch.equal(before, after) else 1 if torch.initial_seed() == seed else 2
        try:
            stored = torch.load(path, weights_only=True)
            keys = " ".join(sorted(stored)) if type(stored) is dict else type(stored).__name__
        except Exception as error:  # several kinds, all of them the answer's doing
            stored, keys = {}, type(error).__name__
        got = stored.get("parts", {}) if type(stored) is dict else {}
        rng = stored.get("rng") if type(stored) is dict else None
        wanted, found = leaves(state), leaves(got)
        gaps = abs(len(wanted) - len(found)) + sum(not alike(a, b) for a, b in zip(wanted, found))
        return {"keys": keys, "names": list(got) if type(got) is dict else [], "gaps": gaps,
                "facts": stored.get("facts") if type(stored) is dict else None,
                "rng": ("as at the call" if alike(rng, before) else "of another time"
                        if isinstance(rng, torch.Tensor) else f"of type {type(rng).__name__}"),
                "moved": ("as it was", "moved on", "seeded anew")[moved], "spoilt": spoilt,
                "missing": sum(c not in (former, content(path)) for c in at_path),
                "lost": [os.path.basename(name) for name in beside
                         if content(name) != name.encode()],
                "linked": int(kind != "first" and content(link) != former),
                "on disk": int(max(on_disk, default=0) == os.path.getsize(path)),
                "files": left + len({*os.listdir(folder), *os.listdir(outer)} - killed
                                    - {os.path.basename(path)})}


@ex.law
def law(out, kind, facts, kills, width):
    expect_parts(out, "keys", "names", "gaps", "facts", "rng", "moved", "spoilt", "missing",
                 "lost", "linked", "on disk", "files")
    expect_equal("kills that damaged the file at path", out["spoilt"], 0,
                 "Write to a file with a different name.")
    expect_equal("keys of the file", out["keys"], "facts parts rng")
    names = ["model", "optimizer", "schedule", "counter"]
    names = names[:{"one part": 1, "three parts": 3, "own": 4}.get(kind, 2)]
    expect_equal("parts in the file", out["names"], names)
    expect_equal("values of the parts that differ", out["gaps"], 0)
    expect_type("facts in the file", out["facts"], dict)
    expect_equal("facts in the file", out["facts"], facts)
    expect_equal("generator's state in the file", out["rng"], "as at the call")
    expect_equal("generator's state after the call", out["moved"], "as it was")
    expect_equal("changes to the old file, seen by its second name", out["linked"], 0,
                 "Rename the new file instead of copying it over the old one.")
    expect_equal("steps after which there was no file at path", out["missing"], 0,
                 "os.replace swaps the files in one step.")
    expect_equal("other files of the folder that changed", out["lost"], [])
    expect_equal("all bytes on the disk before the new file gets its name (1 if so)",
                 out["on disk"], 1, "Flush, then os.fsync, then rename.")
    expect_equal("files left behind by calls that returned", out["files"], 0)


def collected(parts, facts):
    """What the file holds."""
    return {"rng": torch.random.get_rng_state(), "parts": {k: parts[k].state_dict() for k in parts},
            "facts": {k: getattr(v, "item", lambda v=v: v)() for k, v in facts.items()}}


# ---- wrong, by name

def written(path, state, *, beside=".part", mode="wb", sync=True, keep=False,
            move=os.replace):
    """The right way to write, with its pieces as options."""
    with open(path + beside, mode) as file:
        torch.save(state, file)
        if sync:
            os.fsync(file.fileno())
    if beside:
        move(path + beside, path)
    if keep:
        shutil.copy(path, path + ".bak")


@not_an_answer
def right(path, parts, facts):
    with open(path + ".part", "wb") as file:
        torch.save(collected(parts, facts), file)
        os.fsync(file.fileno())
    os.replace(path + ".part", path)


wrong = ex.edits(right)
COLLECTED = "collected(parts, facts)"
ex.wrong("writing directly into the old file",
         lambda path, parts, facts: written(path, collected(parts, facts), beside=""),
         breaks=("whole", "former", "not into", "fsync"))
wrong("removing the old file before writing anything", "former",
      "with open", "if os.path.exists(path): os.remove(path)\n    with open")
wrong("removing the old file just before renaming the new one", "former",
      "with open",
      "def move(new, old):\n        if os.path.exists(old): os.remove(old)\n        "
      "os.rename(new, old)\n    with open", "os.replace", "move")


@ex.wrong("opening path for writing first, to see whether that works", breaks=("whole", "former"))
def opened_first(path, parts, facts):
    with open(path, "ab"):
        written(path, collected(parts, facts))


@ex.wrong("writing the second file into the system's temporary folder",
          breaks=("whole", "not into"))
def elsewhere(path, parts, facts):
    with tempfile.TemporaryDirectory() as folder:
        name = os.path.join(folder, "new.pt")
        written(name, collected(parts, facts), beside="")
        if os.path.exists(path):
            os.replace(name, path)
        else:
            shutil.copy(name, path)


@ex.wrong("removing every file that ends in .tmp", breaks="neighbours")
def swept(path, parts, facts):
    for name in glob.glob(os.path.join(os.path.dirname(path), "*.tmp")):
        os.remove(name)
    written(path, collected(parts, facts))


@ex.wrong("removing every file whose name begins with path", breaks="neighbours")
def swept_by_path(path, parts, facts):
    for name in glob.glob(glob.escape(path) + ".*"):
        os.remove(name)
    written(path, collected(parts, facts))


wrong("leaving out parts that do not come from torch", "parts",
      "(parts, facts)",
      '({k: v for k, v in parts.items() if type(v).__module__.startswith("torch")}, facts)')


@ex.wrong("converting integers to 64 bits", says="OverflowError", breaks="facts")
def short(path, parts, facts):
    state = collected(parts, facts)
    state["facts"] = {k: int(np.int64(v)) if type(v) is int else v
                      for k, v in state["facts"].items()}
    written(path, state)


@ex.wrong("writing directly to path if no file exists yet", breaks="whole")
def first_in_place(path, parts, facts):
    written(path, collected(parts, facts), beside=".part" if os.path.exists(path) else "")


wrong("writing a second file and copying it over the old one", "not into",
      "with open",
      "def copy_over(new, old): shutil.copyfile(new, old); os.remove(new)\n    with open",
      "os.replace", "copy_over")
wrong("leaving out os.fsync", "fsync", "os.fsync(file.fileno())", "pass")
wrong("storing numpy scalars as they are", "facts",
      COLLECTED, '{**collected(parts, {}), "facts": dict(facts)}', says="got UnpicklingError")
wrong("storing all facts as floats", "facts",
      COLLECTED, '{**collected(parts, {}), "facts": {k: float(v) for k, v in facts.items()}}')
wrong("storing the objects instead of their state_dicts", "loads",
      COLLECTED,
      '{**collected({}, facts), "parts": {name: part if '
      'type(part).__module__.startswith("torch") else part.state_dict() for name, part in '
      "parts.items()}}", says="got UnpicklingError")
wrong("storing parts and facts without the keys 'parts' and 'facts'", "loads",
      COLLECTED, '{**state["parts"], **state["facts"], "rng": state["rng"]}',
      "with open", f"state = {COLLECTED}\n    with open")
wrong("storing only the first part",
      "parts", "(parts, facts)", "(dict(list(parts.items())[:1]), facts)")
wrong("storing parameters but no buffers", "parts",
      COLLECTED, "state", "with open",
      'state = collected(parts, facts); state["parts"]["model"] = {k: v for k, v in '
      'state["parts"]["model"].items() if "running" not in k}\n    with open')
wrong("storing the seed instead of the generator's state", "rng",
      COLLECTED, "{**" + COLLECTED + ', "rng": torch.initial_seed()}')
wrong("leaving a second copy of the new file behind", "no other",
      "path)", 'path); shutil.copy(path, path + ".bak")')
wrong("raising an error if a leftover exists", "next", '"wb"', '"xb"')
wrong("changing the state of the generator", "generator", "path)", "path); torch.manual_seed(0)")
wrong("adding the suffix .pt to path", "path",
      "with open",
      'name = os.path.basename(path); path = path if name == "last.pt" else path + ".pt"\n    '
      "with open", says="FileNotFoundError")

"""Small programs with one fault each, and the same programs repaired.

A file in `faults/` has the name of its rule's module. It runs with a few names given (`given`).
`# found` marks a line where the rule may speak; `# repaired: CODE` is what stands in place of its
line in the repaired program.
"""

import contextlib
import copy
import importlib
import multiprocessing
import re
import traceback
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

import dlsys_watch
from dlsys_watch.places import main_file

FAULTS = sorted((Path(__file__).parent / "faults").glob("*.py"))
SHARED = {"broadcast_product": "broadcast_loss",
          "softmax_before_log_softmax": "softmax_twice",  # two faults, one rule
          "no_causal_mask_time_first": "no_causal_mask",
          "weights_not_a_number": "loss_not_a_number",
          "checkpoint_redraws_by_itself": "checkpoint_redraws",
          "pruned_copy_regrows": "pruned_regrows",
          "same_random_numbers_nested": "same_random_numbers",
          "untied_by_to_empty": "untied",
          "end_of_padding_never_learned": "end_never_learned",
          "threshold_on_joined_logits": "threshold_on_logits",
          "scheduler_longer_than_run": "scheduler_unit",
          "scheduler_of_one_pass": "scheduler_unit",
          "steps_on_validation": "steps_in_eval_mode"}
LINE = re.compile(r"^(?P<indent>\s*).*# repaired: (?P<code>.*)$")


def rule_of(path: Path):
    """The class of the rule that a program is for."""
    from dlsys_watch.rules import all_rules

    name = f"dlsys_watch.rules.{SHARED.get(path.stem, path.stem)}"
    importlib.import_module(name)
    return next(rule for rule in all_rules() if rule.__module__ == name)


def repaired(source: str) -> str:
    return "\n".join(LINE.sub(r"\g<indent>\g<code>", line) for line in source.split("\n"))


def given() -> dict:
    """What a program finds: rows x (64, 10), classes y (64,), numbers t (64,), and net()."""
    torch.manual_seed(0)

    def net(outputs=3, inputs=10):
        return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, outputs))

    return {"torch": torch, "nn": nn, "F": nn.functional, "copy": copy, "net": net,
            "x": torch.randn(64, 10), "y": torch.randint(3, (64,)), "t": torch.randn(64),
            "__name__": "__main__"}


@contextlib.contextmanager
def forked_workers() -> Iterator[None]:
    """Start a loader's workers by fork: a program that is run here is no module to import.

    From Python 3.14 on, the default on Linux imports the program's main file anew.
    """
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("fork", force=True)
    try:
        yield
    finally:
        multiprocessing.set_start_method(before, force=True)


def watch(source: str, path: Path, hints: bool = False, names: dict | None = None) -> tuple:
    """Run a program under the watch: its findings, and the rules that failed."""
    main_file.append(str(path))
    code = compile(source, str(path), "exec")
    session = dlsys_watch.watching(hints=hints)
    with forked_workers(), session as found:
        exec(code, given() if names is None else names)
    return found, session.failed


def lines_found(source: str) -> set[int]:
    return {number for number, line in enumerate(source.split("\n"), 1) if "# found" in line}


def try_all() -> None:
    """Print what does not hold, for whoever writes a rule."""
    for path in FAULTS:
        rule, source = rule_of(path), path.read_text("utf-8")
        try:
            for text, wanted in ((source, lines_found(source)), (repaired(source), set())):
                found, failed = watch(text, path, hints=not rule.sound)
                lines = {f.line for f in found if f.rule == rule.id}
                others = [(f.rule, f.line) for f in found if f.rule != rule.id]
                if bool(lines) != bool(wanted) or not lines <= wanted or others or failed:
                    print(path.stem, "broken" if wanted else "repaired", "found", lines,
                          "wanted", wanted, others, failed)
        except Exception:
            print(path.stem)
            traceback.print_exc()


if __name__ == "__main__":
    try_all()

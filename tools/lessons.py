"""Read a lesson source and refuse what would not teach: every rule of the format is here."""

from __future__ import annotations

import ast
import re
from itertools import groupby
from pathlib import Path
from typing import Any, NoReturn

import jupytext
from nbformat import NotebookNode

from dlsys_helpers import checking, stages

TRAP_ORDER = ["predict", "break", "look", "repair", "folklore", "exercise", "hint", "keep"]
OPTIONAL = {"folklore"}
STAGE_ORDER = ["setup", "hook", "concept", "explore", "trap", "quiz", "gpu", "summary"]
STAGE_ROLES = {"setup", "hook", "concept", "explore", "quiz", "gpu", "summary", "start"}
SOLUTION = re.compile(r"^[ \t]*# BEGIN SOLUTION\n(.*?)^[ \t]*# END SOLUTION[ \t]*$", re.M | re.S)
MAX_LINES, MAX_COLUMNS = 20, 76
PARAMETERS = ("SEED", "THREADS", "DEVICE")


class RuleBroken(SystemExit):
    """A lesson breaks a rule: file, cell, what is wrong and the remedy, in one line."""


class Source:
    """One lesson: its cells with role, trap and id set, checked against every rule."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stage = int(path.stem[:2])
        self.cells: list[NotebookNode] = jupytext.read(path, fmt="py:percent").cells
        _label(self)
        self.traps = list(dict.fromkeys(c.metadata.get("trap") for c in self.cells))
        self.traps = [trap for trap in self.traps if trap]

    def refuse(self, cell: NotebookNode | None, what: str, remedy: str) -> NoReturn:
        where = f", cell {cell['id']}" if cell is not None else ""
        raise RuleBroken(f"{self.path.parent.name}/{self.path.name}{where}: {what} {remedy}")

    def of(self, trap: str | None = None, role: str | None = None,
           kind: str | None = None) -> list[NotebookNode]:
        """The cells of a trap, a role and a kind ("code", "markdown"); None means any."""
        return [c for c in self.cells
                if (trap is None or c.metadata.get("trap") == trap)
                and (role is None or c.metadata.get("role") == role)
                and (kind is None or c.cell_type == kind)]

    def title(self, trap: str) -> str:
        """The heading of a trap: the first line of its predict cell."""
        return self.of(trap, "predict")[0].source.splitlines()[0].removeprefix("## ").strip()


def _label(source: Source) -> None:
    """Give every cell role, trap and a stable id derived from them."""
    trap, counts = None, {}
    for cell in source.cells:
        role = cell.metadata.get("role")
        cell["id"] = "unlabelled"
        if role not in STAGE_ROLES | set(TRAP_ORDER):
            first = (cell.source.splitlines() or ["an empty cell"])[0][:40]
            source.refuse(None, f"the cell that begins {first!r} has role {role!r}.",
                          f"Give it one of {', '.join(sorted(STAGE_ROLES | set(TRAP_ORDER)))}.")
        if role in TRAP_ORDER:
            trap = str(cell.metadata.get("trap", trap))
            cell.metadata["trap"] = trap
        key = f"{trap.replace('.', '-')}-{role}" if role in TRAP_ORDER else f"stage-{role}"
        counts[key] = counts.get(key, 0) + 1
        cell["id"] = f"{key}-{counts[key]}"


def read(path: Path) -> Source:
    """The lesson at `path`, with every rule checked. Raises RuleBroken, which names the remedy."""
    source = Source(path)
    if source.stage == 0:
        return source
    for rule in RULES:
        rule(source)
    return source


def rule_title(source: Source) -> None:
    wanted = f"# {source.stage}. {stages.stage(source.stage).title}"
    first = source.cells[0]
    if first.source.splitlines()[:1] != [wanted] or first.metadata["role"] != "hook":
        source.refuse(first, "the lesson's heading differs from the list of stages.",
                      f"Begin with a hook cell whose first line is {wanted!r}.")
    if source.path.stem != stages.stage(source.stage).stem:
        source.refuse(None, "the file name differs from the list of stages.",
                      f"Name it {stages.stage(source.stage).stem}.py.")


def rule_parameters(source: Source) -> None:
    tagged = [c for c in source.of(role="setup") if "parameters" in c.metadata.get("tags", [])]
    names = tuple(t.id for c in tagged for n in ast.parse(c.source).body
                  if isinstance(n, ast.Assign) for t in n.targets)
    if len(tagged) != 1 or names != PARAMETERS:
        source.refuse(None, f"parameters found: {', '.join(names) or 'none'}.",
                      f'Declare {", ".join(PARAMETERS)} in one setup cell, tags=["parameters"].')


def rule_stage_order(source: Source) -> None:
    seen = ["trap" if c.metadata["role"] in TRAP_ORDER else c.metadata["role"]
            for c in source.cells]
    free = {"setup", "concept", "explore", "hook"}  # these may alternate before the traps
    tail = [r for r in dict.fromkeys(seen) if r not in free]
    if tail != ["trap", "quiz", "gpu", "summary"]:
        source.refuse(None, f"the parts come as {', '.join(tail)}.",
                      "Order them: traps, quiz, gpu, summary.")
    for missing in [r for r in STAGE_ORDER if r not in seen]:
        source.refuse(None, f"the part {missing!r} is missing.", "Write it.")
    after = seen[seen.index("trap"):]
    if free & set(after) - {"explore", "setup"}:
        source.refuse(None, "a hook or concept cell stands after the first trap.",
                      "Move it before the traps, or into a trap.")


def rule_trap_order(source: Source) -> None:
    for n, trap in enumerate(source.traps, 1):
        roles = [role for role, _ in groupby(source.of(trap), lambda c: c.metadata["role"])]
        wanted = [r for r in TRAP_ORDER if r in roles or r not in OPTIONAL]
        if roles != wanted:
            source.refuse(source.of(trap)[0], f"trap {trap} has {', '.join(roles)}.",
                          f"Each id once; its cells run {', '.join(wanted)}.")
        if trap != f"{source.stage:02d}.{n}":
            source.refuse(source.of(trap)[0], f"trap {trap} stands at place {n}.",
                          f"Ids count up without gaps: {source.stage:02d}.{n}.")
        places = [i for i, c in enumerate(source.cells) if c.metadata.get("trap") == trap]
        inner = source.cells[places[0]:places[-1] + 1]
        stray = [c for c in inner if c.metadata["role"] not in {*TRAP_ORDER, "explore"}]
        if stray:
            source.refuse(stray[0], f"this cell stands inside trap {trap}.", "Move it out.")


def rule_predict(source: Source) -> None:
    for trap in source.traps:
        first = source.of(trap, "predict")[0]
        if not first.source.startswith("## ") or not first.metadata.get("symptom"):
            source.refuse(first, "a trap needs a heading and a symptom.",
                          'Begin with "## ..." and give the cell symptom="what one would search".')
        if "?" not in first.source:
            source.refuse(first, "nothing is asked.", "End the predict cell with a question.")


def rule_claims(source: Source) -> None:
    for trap in source.traps:
        for role in ("look", "repair"):
            code = source.of(trap, role, "code")
            if not any("claim(" in c.source for c in code):
                source.refuse(source.of(trap, role)[0],
                              f"the {role} of trap {trap} claims nothing.",
                              "Bind its number with claim(...).")
    for cell in source.of(role="gpu", kind="code"):
        if "plt.show" in cell.source:
            source.refuse(cell, "plt.show is used.", "Use show(figure, alt=...).")


def rule_exercises(source: Source) -> None:
    for trap in source.traps:
        cells = source.of(trap, "exercise")
        cell = cells[0]
        if len(cells) != 1 or cell.cell_type != "code":
            source.refuse(cell, f"trap {trap} has {len(cells)} exercise cells.", "Write one.")
        if len(SOLUTION.findall(cell.source)) != 1:
            source.refuse(cell, "an exercise needs exactly one solution region.",
                          "Use # BEGIN SOLUTION and # END SOLUTION once.")
        for key in ("points", "difficulty", "minutes"):
            if not isinstance(cell.metadata.get(key), int):
                source.refuse(cell, f"{key} is missing.", f"Add {key}=<whole number>.")
        name = exercise_function(source, trap).name
        found = checking.load_all().get(trap)
        if found is None or found.function != name:
            source.refuse(cell, f"no check named {trap} for the function {name}.",
                          f"Register it in src/dlsys_checks/s{source.stage:02d}/.")
        hints = split_hints(source.of(trap, "hint")[0].source)
        if not 2 <= len(hints) <= 3:
            source.refuse(source.of(trap, "hint")[0], f"{len(hints)} hints found.",
                          "Write two or three, as a list numbered 1., 2., 3.")
    spare = [i for i in checking.load_all() if i[:2] == f"{source.stage:02d}"
             and i not in source.traps]
    if spare:
        source.refuse(None, f"check {spare[0]} has no exercise.", "Write it or drop the check.")


def exercise_function(source: Source, trap: str) -> ast.FunctionDef:
    """The function (or class) that an exercise asks for: the last one defined in its cell."""
    cell = source.of(trap, "exercise")[0]
    found = [n for n in ast.parse(cell.source).body
             if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    if not found:
        source.refuse(cell, "no function is defined.", "An exercise asks for one function.")
    return found[-1]


def rule_no_learner_answers(source: Source) -> None:
    names = {exercise_function(source, trap).name for trap in source.traps}
    for cell in source.of(kind="code"):
        if cell.metadata["role"] == "exercise":
            continue
        used = {n.id for n in ast.walk(ast.parse(cell.source)) if isinstance(n, ast.Name)} & names
        if used:
            source.refuse(cell, f"it uses a learner's answer: {', '.join(sorted(used))}.",
                          "Rename it in the lesson: the lesson runs without any answer.")


def rule_size(source: Source) -> None:
    for cell in source.of(kind="code"):
        lines = cell.source.splitlines()
        long = [n for n, line in enumerate(lines, 1) if len(line) > MAX_COLUMNS]
        if long:
            source.refuse(cell, f"line {long[0]} is longer than {MAX_COLUMNS} columns.",
                          "Break it: the page cuts it.")
        if len(lines) > MAX_LINES and cell.metadata["role"] not in {"exercise", "setup"}:
            source.refuse(cell, f"it has {len(lines)} lines, expected at most {MAX_LINES}.",
                          "Split it, or move machinery into the package.")


NUMBER = re.compile(r"(?<![\w.])(\d[\d,]*(?:\.\d+)?)(?:\s*(%))?(?![\w.]*\d)")
NOT_PROSE = re.compile(r"`[^`]*`|\$[^$]*\$|\]\([^)]*\)|\*\*Source:\*\*.*|<[^>]+>|\b\d\d\.\d+\b"
                       r"|^\s*\d+\.\s", re.M | re.S)


def rule_numbers(source: Source) -> None:
    """Every number in a trap's prose stands in its code, as a literal: measured or asserted."""
    for trap in source.traps:
        known = {v for c in source.of(trap, kind="code") for v in literals(c.source)}
        for cell in source.of(trap, kind="markdown"):
            if cell.metadata["role"] == "hint":
                continue
            for text, percent in NUMBER.findall(NOT_PROSE.sub(" ", cell.source)):
                value = float(text.replace(",", ""))
                if not percent and value < 10 and value == int(value):
                    continue  # counting words: "two layers" and "2 layers" alike
                wanted = {value, value / 100} if percent else {value}
                if not any(abs(w - k) <= 1e-9 * max(1, abs(w)) for w in wanted for k in known):
                    source.refuse(cell, f"the number {text}{percent} stands in no claim and no "
                                  f"code of trap {trap}.", "Measure it, claim it, or drop it.")


def literals(code: str) -> set[float]:
    """Absolute values of all numeric literals in a piece of code."""
    return {abs(float(n.value)) for n in ast.walk(ast.parse(code))
            if isinstance(n, ast.Constant) and type(n.value) in (int, float)}


QUIZ_CHOICE = re.compile(r"^- \[([ x])\] (.+?) :: (.+?)(?=^- \[|\Z)", re.M | re.S)


def rule_quiz(source: Source) -> None:
    for cell in source.of(role="quiz", kind="markdown"):
        if "- [" not in cell.source:
            continue
        _, choices = split_quiz(cell.source)
        if cell.source.count("\n- [") != len(choices):
            source.refuse(cell, "a choice is not explained.", 'Write "- [ ] choice :: why".')
        if sum(right for right, _, _ in choices) != 1:
            source.refuse(cell, "a question needs one right choice.", "Mark one with [x].")


def split_quiz(text: str) -> tuple[str, list[tuple[bool, str, str]]]:
    """A quiz cell as its question and its choices: (right, choice, why)."""
    choices = [(mark == "x", " ".join(a.split()), " ".join(b.split()))
               for mark, a, b in QUIZ_CHOICE.findall(text)]
    return text.split("\n- [")[0].strip(), choices


def split_hints(text: str) -> list[str]:
    """The steps of a hint cell, a list numbered 1., 2., 3."""
    return [" ".join(part.split()) for part in re.split(r"^\d\.\s", text, flags=re.M)[1:]]


RULES: list[Any] = [rule_title, rule_parameters, rule_stage_order, rule_trap_order, rule_predict,
                    rule_claims, rule_exercises, rule_no_learner_answers, rule_size, rule_numbers,
                    rule_quiz]

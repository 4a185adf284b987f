"""Parse a lesson source and lint it: every rule of the format is here.

Always refuses what is wrong. What is missing, or only too long, it notes in a draft and refuses
otherwise.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jupytext
from nbformat import NotebookNode

import dlsys_helpers
from dlsys_checks import questions, registry
from dlsys_helpers import explorers, guesses, stages
from dlsys_helpers.catalog import Trap
from dlsys_helpers.lesson_names import YOUR_MODEL
from dlsys_helpers.paths import ROOT
from tools import solutions

TRAP_ORDER = ["situation", "break", "guess", "look", "why", "repair", "more", "folklore",
              "exercise", "hint", "keep"]
OPTIONAL = {"more", "folklore"}
# The visible steps of a trap; everything else is folded under More.
OPEN = ("situation", "guess", "look", "why", "repair", "keep")
FOLDED = {"more", "folklore"}
MAX_WORDS = 350  # visible words of a trap
MIN_PICTURES = 6  # figures of a stage
WIDEST_BAND = 3  # the highest guess that counts as right, divided by the lowest
MAX_FAULT = 60  # characters of a fault's name
STAGE_ORDER = ["setup", "hook", "concept", "explore", "trap", "quiz", "gpu", "summary"]
STAGE_ROLES = {"setup", "hook", "concept", "explore", "quiz", "gpu", "summary", "start"}
# The parts from the traps on, in this order. Further: concepts that no trap needs.
TAIL = ["trap", "further", "quiz", "gpu", "summary"]
FURTHER = "## Further"
SOLUTION = re.compile(r"^[ \t]*# BEGIN SOLUTION\n(.*?)^[ \t]*# END SOLUTION[ \t]*$", re.M | re.S)
MAX_LINES, MAX_COLUMNS = 20, 76
MIN_QUESTIONS = 4  # review questions about each trap
MAX_CORE, MAX_CORE_MINUTES = 5, 60  # core path of a stage: traps, exercise time
MAX_TEACHING, MAX_BESIDE = 15, 3  # lines of code in a cell, and next to claims
MAX_CLAIMS, MAX_FOLDED_CLAIMS = 1, 6  # in a row: in the visible steps of a trap, and elsewhere
PLUMBING = "plumbing"  # tag of a cell that measures but teaches nothing; it is folded
DRAWS = {"show", *(name for name in dlsys_helpers.__all__ if name.startswith(("draw_", "plot_")))}
# No rule on density applies to set-up, exercises, explorer calls and GPU code.
NOT_DENSE = {"setup", "exercise", "explore", "gpu"}
NUMBER_WORDS = dict(enumerate((
    "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen"), 2))
PARAMETERS = ("SEED", "THREADS", "DEVICE")
PLACEHOLDER = "TODO:"  # in every text that `make new` writes


class RuleBroken(SystemExit):
    """A lesson breaks a rule: file, cell, what is wrong and the remedy, in one line.

    place: the file to edit, with the line if it is known: "lessons/05_x.py:120".
    """

    def __init__(self, message: str, place: str) -> None:
        super().__init__(message)
        self.place = place


class Note(str):
    """What a draft lacks, and the `place` to edit, as in RuleBroken."""

    def __new__(cls, text: str, place: str) -> Note:
        note = super().__new__(cls, text)
        note.place = place
        return note


class Source:
    """One lesson: its cells with role, trap and id set; `notes` lists what a draft lacks."""

    def __init__(self, path: Path, draft: bool = False) -> None:
        self.path = path
        self.draft, self.notes = draft, []
        self.stage = 0 if path.stem == YOUR_MODEL else int(path.stem[:2])
        self.cells = copy.deepcopy(_parsed(path.read_text("utf-8")))
        _label(self)
        self.lines = {cell["id"]: line for cell, line in zip(
            self.cells, marker_lines(path.read_text("utf-8")), strict=False)}
        self.traps = list(dict.fromkeys(c.metadata.get("trap") for c in self.cells))
        self.traps = [trap for trap in self.traps if trap]
        self._of_trap = {trap: [c for c in self.cells if c.metadata.get("trap") == trap]
                         for trap in self.traps}

    def refuse(self, cell: NotebookNode | None, what: str, remedy: str,
               place: str = "") -> NoReturn:
        where = f", cell {cell['id']}" if cell is not None else ""
        raise RuleBroken(f"{self.name}{where}: {what} {remedy}", place or self.place(cell))

    def lacks(self, cell: NotebookNode | None, what: str, remedy: str, place: str = "") -> None:
        """Refuse a fault that a draft may have; in a draft, note it and go on.

        place: the file to edit, if it is not the lesson.
        """
        if not self.draft:
            self.refuse(cell, what, remedy, place)
        text = f"{cell['id']}: {what} {remedy}" if cell else f"{what} {remedy}"
        self.notes.append(Note(text, place or self.place(cell)))

    @property
    def name(self) -> str:
        """The lesson's file as people write it, lessons/05_normalization.py."""
        return f"{self.path.parent.name}/{self.path.name}"

    def place(self, cell: NotebookNode | None) -> str:
        """The file and line where a cell begins; only the file for None."""
        if cell is None or cell["id"] not in self.lines:
            return self.name
        return f"{self.name}:{self.lines[cell['id']]}"

    @property
    def tasks(self) -> list[str]:
        """The traps that have an exercise; in a finished lesson, all of them."""
        return [trap for trap in self.traps if self.of(trap, "exercise")]

    def of(self, trap: str | None = None, role: str | None = None,
           kind: str | None = None) -> list[NotebookNode]:
        """The cells of a trap, a role and a kind ("code", "markdown"); None means any."""
        return [c for c in (self.cells if trap is None else self._of_trap.get(trap, ()))
                if (role is None or c.metadata.get("role") == role)
                and (kind is None or c.cell_type == kind)]

    def title(self, trap: str) -> str:
        """The trap's heading, which names the situation; "untitled" if a draft has none."""
        found = self.of(trap, "situation")
        return found[0].source.splitlines()[0].removeprefix("## ").strip() if found else "untitled"

    def fault(self, trap: str) -> str:
        """The fault in the words that people search for: fault="..." on its situation."""
        return next((c.metadata["fault"] for c in self.of(trap, "situation")
                     if c.metadata.get("fault")), "")

    def is_core(self, trap: str) -> bool:
        """Whether the trap is on the stage's core path: core=true on its situation."""
        return any(c.metadata.get("core") is True for c in self.of(trap, "situation"))

    def minutes(self, trap: str) -> int:
        """The minutes of a trap's exercise; 0 if a draft has none, or does not say."""
        return sum(c.metadata.get("minutes", 0) for c in self.of(trap, "exercise"))

    def exercise(self, trap: str) -> NotebookNode:
        """The cell of a trap's exercise."""
        return self.of(trap, "exercise")[0]

    def task(self, trap: str) -> Trap:
        """What the lesson declares about a trap and its exercise."""
        meta = self.exercise(trap).metadata
        first = next(iter(self.of(trap, "situation")), None)
        return Trap(id=trap, title=self.title(trap), fault=self.fault(trap),
                    symptom=first.metadata.get("symptom", "") if first else "",
                    function=exercise_function(self, trap).name, points=meta["points"],
                    difficulty=meta["difficulty"], minutes=meta["minutes"],
                    core=self.is_core(trap), hints=tuple(self.hints(trap)))

    def hints(self, trap: str) -> list[str]:
        """The steps of a trap's hint; none if a draft has no hint yet."""
        return [step for cell in self.of(trap, "hint") for step in split_hints(cell.source)]


@lru_cache(128)
def _parsed(text: str) -> list[NotebookNode]:
    """The cells of a lesson's text, cached because jupytext takes a tenth of a second."""
    return jupytext.reads(text, fmt="py:percent").cells


def marker_lines(text: str) -> list[int]:
    """The numbers of the lines that begin a cell."""
    return [n for n, line in enumerate(text.splitlines(), 1) if line.startswith("# %%")]


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


def read(path: Path, draft: bool = False) -> Source:
    """The lesson at `path`, with every rule checked. Raises RuleBroken, which names the remedy.

    The `notes` of a draft list what it lacks; errors are still refused.
    """
    source = Source(path, draft)
    if path.stem.startswith("00"):
        return source
    for rule in RULES if source.stage else MODEL_RULES:
        rule(source)
    return source


def rule_syntax(source: Source) -> None:
    for cell in source.of(kind="code"):
        try:
            ast.parse(cell.source)
        except SyntaxError as error:
            source.refuse(cell, f"line {error.lineno}, `{(error.text or '').strip()}`: "
                          f"{error.msg}.", "Mend it: no cell has run yet.")


def rule_title(source: Source) -> None:
    wanted = f"# {source.stage}. {stages.stage(source.stage).title}"
    first = source.cells[0]
    if first.source.splitlines()[:1] != [wanted] or first.metadata["role"] != "hook":
        source.refuse(first, "the lesson's heading differs from the list of stages.",
                      f"Begin with a hook cell whose first line is {wanted!r}.")
    if source.path.stem != stages.stage(source.stage).stem:
        source.refuse(None, "the file name differs from the list of stages.",
                      f"Name it {stages.stage(source.stage).stem}.py.")


def rule_count(source: Source) -> None:
    """A hook that counts the traps says so on its marker, so that we notice a new trap."""
    number = len(source.traps)
    for cell in [c for c in source.of(role="hook") if "traps" in c.metadata]:
        word = NUMBER_WORDS.get(number, str(number))
        if cell.metadata["traps"] != number or not re.search(rf"\b{word}\b", cell.source, re.I):
            source.lacks(cell, f"it counts the traps as {cell.metadata['traps']}, and the lesson "
                         f"has {number}.", f"Rewrite the sentence that counts them, with the word "
                         f"{word!r}, then write traps={number} on the cell's marker.")


def rule_parameters(source: Source) -> None:
    tagged = [c for c in source.of(role="setup") if "parameters" in c.metadata.get("tags", [])]
    names = tuple(t.id for c in tagged for n in ast.parse(c.source).body
                  if isinstance(n, ast.Assign) for t in n.targets)
    if len(tagged) != 1 or names != PARAMETERS:
        source.refuse(None, f"parameters found: {', '.join(names) or 'none'}.",
                      f'Declare {", ".join(PARAMETERS)} in one setup cell, tags=["parameters"].')


def rule_stage_order(source: Source) -> None:
    seen = parts(source)
    tail = [part for part, _ in groupby(r for r in seen if r in TAIL)]
    if tail != [part for part in TAIL if part in tail]:
        source.refuse(None, f"the parts come as {', '.join(tail)}.",
                      f"Order them: {', '.join(TAIL)}, each in one piece; further is what concept "
                      "cells after the last trap are.")
    for missing in [r for r in STAGE_ORDER if r not in seen]:
        source.lacks(None, f"the part {missing!r} is missing.", "Write it.")
    if tail and "hook" in seen[seen.index(tail[0]):]:
        source.refuse(None, "a hook cell stands after the first trap.",
                      "Move it before the traps.")
    if "further" in seen and not source.cells[
            seen.index("further")].source.startswith(FURTHER):
        source.refuse(source.cells[seen.index("further")], "concepts follow without a heading.",
                      f"Begin them with a markdown cell that starts {FURTHER!r}.")
    for n, cell in enumerate(source.cells):
        opens = seen[n] == "concept" and "trap" in seen[:n] and seen[n - 1] != "concept"
        if opens and not cell.source.startswith("## "):
            source.refuse(cell, "concepts stand between traps without a heading.",
                          "Begin them with a markdown cell that starts '## ': it opens a part.")


def parts(source: Source) -> list[str]:
    """The part of the lesson for each cell: its role, "trap", or "further" for a late concept."""
    seen = ["trap" if c.metadata["role"] in TRAP_ORDER else c.metadata["role"]
            for c in source.cells]
    last = len(seen) - seen[::-1].index("trap") if "trap" in seen else len(seen)
    return seen[:last] + ["further" if r == "concept" else r for r in seen[last:]]


def rule_trap_order(source: Source) -> None:
    for trap in source.traps:
        roles = [role for role, _ in groupby(source.of(trap), lambda c: c.metadata["role"])]
        wanted = [r for r in TRAP_ORDER if r in roles or r not in OPTIONAL]
        if roles != [r for r in TRAP_ORDER if r in roles]:
            source.refuse(source.of(trap)[0], f"trap {trap} has {', '.join(roles)}.",
                          f"Each id once; its cells run {', '.join(wanted)}.")
        if roles != wanted:
            missing = ", ".join(r for r in wanted if r not in roles)
            source.lacks(source.of(trap)[0], f"trap {trap} has no {missing}.",
                         f"Write it; the cells of a trap run {', '.join(wanted)}.")
        places = [i for i, c in enumerate(source.cells) if c.metadata.get("trap") == trap]
        inner = source.cells[places[0]:places[-1] + 1]
        stray = [c for c in inner if c.metadata["role"] not in {*TRAP_ORDER, "explore"}]
        if stray:
            source.refuse(stray[0], f"this cell stands inside trap {trap}.", "Move it out.")


def place(id: str) -> tuple[int, ...]:
    """The sort key of an id: 09.10 comes after 09.9."""
    return tuple(map(int, id.split(".")))


def rule_ids(source: Source) -> None:
    """The ids of a stage are 1 to n; a lesson may have its traps in a different order."""
    wanted = [f"{source.stage:02d}.{n}" for n in range(1, len(source.traps) + 1)]
    strange = [trap for trap in source.traps if not trap.startswith(f"{source.stage:02d}.")]
    for trap in strange:
        source.refuse(source.of(trap)[0], f"trap {trap} is of another stage.",
                      f"Ids of this lesson begin with {source.stage:02d}.")
    if missing := [trap for trap in wanted if trap not in source.traps]:
        # A draft may not have all of its traps yet.
        source.lacks(None, f"of {len(wanted)} traps none is {', '.join(missing)}.",
                     f"Ids are {wanted[0]} to {wanted[-1]} without gaps, in any order.")


def rule_situation(source: Source) -> None:
    """A trap has two names: the situation as its heading, the fault for readers who look it up."""
    for first in [c for trap in source.traps for c in source.of(trap, "situation")[:1]]:
        if not first.source.startswith("## ") or not first.metadata.get("symptom"):
            source.refuse(first, "a trap needs a heading and a symptom.",
                          'Begin with "## ..." and give the cell symptom="what one would search".')
        fault = first.metadata.get("fault", "")
        if not 0 < len(fault) <= MAX_FAULT or fault.endswith("."):
            source.lacks(first, f"its fault is {fault!r}, expected 1 to {MAX_FAULT} characters "
                         "without a full stop.",
                         'Give the cell fault="the causal mask is missing", in such words.')


def rule_break(source: Source) -> None:
    """The broken code comes before the question, so it prints and draws nothing."""
    for cell in source.of(role="break", kind="code"):
        shown = sorted({"print", "claim", *DRAWS} & {*calls(ast.parse(cell.source))})
        if shown:
            source.lacks(cell, f"it calls {', '.join(shown)} above the question.",
                         "Show what comes out in a look cell, behind the guess.")


def rule_core(source: Source) -> None:
    """A stage has a core path: one to five traps, with at most an hour of exercises."""
    core = [trap for trap in source.traps if source.is_core(trap)]
    spent = sum(source.minutes(trap) for trap in core)
    if not core:
        source.lacks(None, "no trap is on the core path.",
                     "Mark up to five situations with core=true.")
    if len(core) > MAX_CORE or spent > MAX_CORE_MINUTES:
        source.refuse(None, f"the core path has {len(core)} traps with {spent} minutes of "
                      f"exercises, expected at most {MAX_CORE} and {MAX_CORE_MINUTES}.",
                      "Take core=true from those that one needs less often.")


def rule_guess(source: Source) -> None:
    """Each trap shows its broken code, asks what it does, and comes back to the guess."""
    for trap in source.traps:
        asked = [c for c in source.of(trap, "guess") if sole_call(c, "guess")]
        if asked != source.of(trap, "guess") or len(asked) != 1:
            source.lacks(source.of(trap)[0], f"trap {trap} has no cell that asks for a guess, "
                         "or more than that.", "Let its guess be one code cell, "
                         f'guess("{trap}", "...?", choices=[...]), or unit="...".')
            continue
        question = question_in(source, trap, asked[0])
        answers = [c for role in ("look", "why", "repair") for c in source.of(trap, role, "code")
                   if "measured(" in c.source]
        if len(answers) != 1 or not sole_call(answers[0], "measured"):
            source.lacks(asked[0], f"{len(answers)} cells come back to the guess of trap {trap}.",
                         f'Put measured("{trap}", ...) into one cell of its own, in its look, why '
                         "or repair part.")
            continue
        answer_fits(source, question, answers[0])


def sole_call(cell: NotebookNode, name: str) -> ast.Call | None:
    """The call of this function if it is the whole cell, else None."""
    match ast.parse(cell.source).body:
        case [ast.Expr(value=ast.Call(func=ast.Name(id=called)) as call)] if called == name:
            return call
    return None


def question_in(source: Source, trap: str, cell: NotebookNode) -> guesses.Question:
    """The question of a guess cell, whose arguments are literals."""
    call = sole_call(cell, "guess")
    named = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
    id, text = map(ast.literal_eval, call.args)
    if id != trap or not text.rstrip().endswith("?"):
        source.refuse(cell, f"it is guess({id!r}, {text[-20:]!r}).",
                      f"Give it the trap, {trap!r}, and a question that ends with '?'.")
    try:
        return guesses.checked(guesses.Question(id, text, tuple(named.get("choices", ())),
                                                named.get("unit", "")))
    except ValueError as error:
        source.refuse(cell, f"{error}", 'Write choices=["...", "...", "..."] or unit="...".')


def answer_fits(source: Source, question: guesses.Question, cell: NotebookNode) -> None:
    """A choice is answered by an index, a number by the range of guesses that count as right."""
    call = sole_call(cell, "measured")
    id, value = call.args
    ranged = [word.arg for word in call.keywords] == ["right"]
    index = value.value if isinstance(value, ast.Constant) else None
    fits = index in range(len(question.choices)) if question.choices else ranged
    if ast.literal_eval(id) != question.id or not fits:
        source.refuse(cell, "it does not answer its question.",
                      f'Write measured("{question.id}", 0) with the index of the right choice, or '
                      "for a number its value and right=(lowest, highest).")
    if ranged and not question.choices:
        low, high = ast.literal_eval(call.keywords[0].value)
        if low > 0 and high > WIDEST_BAND * low:
            source.lacks(cell, f"guesses from {low:g} to {high:g} count as right, a factor of "
                         f"{high / low:.3g}.", f"Take at most {WIDEST_BAND}.")


class Fairness(NamedTuple):
    """What a guess reveals: the place of the right choice, and whether the quoted person is right.

    place, choices: the index of the right choice, and the number of choices; None if the answer is
    a number. quoted: whether the person quoted above the question is right; None without a quote.
    """

    trap: str
    place: int | None
    choices: int | None
    quoted: bool | None


def fairness(source: Source) -> Iterator[Fairness]:
    """The `Fairness` of each trap; the lesson must have passed `rule_guess`."""
    for trap in source.traps:
        cell = source.of(trap, "guess")[0]
        asked = question_in(source, trap, cell)
        call = next(filter(None, (sole_call(c, "measured") for c in source.of(trap, kind="code"))))
        said = cell.metadata.get("quoted")
        yield Fairness(trap, call.args[1].value if asked.choices else None,
                       len(asked.choices) or None, None if said is None else said == "right")


QUOTED = re.compile(r"[\"\u201c][^\"\u201d]{12,}[\"\u201d]")  # a quoted sentence, not a quoted word


def rule_quoted(source: Source) -> None:
    """Quoted people are right about as often as by chance, so each guess says whether they are."""
    for trap in source.traps:
        text = "\n".join(c.source for c in source.of(trap, "situation"))
        speaks = QUOTED.search(NOT_PROSE.sub(" ", text)) is not None
        for cell in source.of(trap, "guess"):
            said = cell.metadata.get("quoted")
            if said not in (None, "right", "wrong") or speaks != (said is not None):
                source.lacks(cell, f"its situation quotes {'somebody' if speaks else 'nobody'} "
                             f"and quoted is {said!r}.", 'Give the guess cell quoted="right" or '
                             'quoted="wrong" where somebody is quoted, and nothing elsewhere.')


def rule_claims(source: Source) -> None:
    for trap in source.traps:
        for role in ("look", "repair"):
            cells = source.of(trap, role)
            if cells and not any("claim(" in c.source for c in cells if c.cell_type == "code"):
                source.lacks(cells[0], f"the {role} of trap {trap} claims nothing.",
                             "Bind its number with claim(...).")
    for cell in source.of(role="gpu", kind="code"):
        if "plt.show" in cell.source:
            source.refuse(cell, "plt.show is used.", "Use show(figure, alt=...).")


def rule_exercises(source: Source) -> None:
    for trap in source.tasks:
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


def rule_hints(source: Source) -> None:
    for trap in source.traps:
        for cell in source.of(trap, "hint")[:1]:
            if not 2 <= len(source.hints(trap)) <= 3:
                source.lacks(cell, f"{len(source.hints(trap))} hints found.",
                             "Write two or three, as a list numbered 1., 2., 3.")


def rule_checks(source: Source) -> None:
    folder = f"src/dlsys_checks/s{source.stage:02d}/"
    checks = imported(source, folder, lambda: registry.of_stage(source.stage))
    for trap in source.tasks:
        cell, name = source.exercise(trap), exercise_function(source, trap).name
        if trap not in checks:
            source.lacks(cell, f"no check named {trap} for the function {name}.",
                         f"Register it in {folder}.")
        elif checks[trap].function != name:
            source.refuse(cell, f"check {trap} is for the function {checks[trap].function}, not "
                          f"for {name}.", f"Rename one of the two: here, or in {folder}.")
    for id in [id for id in checks if id not in source.tasks]:
        source.lacks(None, f"check {id} has no exercise.", "Write it or drop the check.")


def exercise_function(source: Source, trap: str) -> ast.FunctionDef:
    """The function or class that an exercise asks for, which is the last one in its cell."""
    cell = source.exercise(trap)
    found = [n for n in ast.parse(cell.source).body
             if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    if not found:
        source.refuse(cell, "no function is defined.", "An exercise asks for one function.")
    return found[-1]


def rule_questions(source: Source) -> None:
    """Weeks later, review draws one of several questions about each trap."""
    folder = "src/dlsys_checks/questions/"
    for trap in source.traps:
        found = imported(source, folder, lambda: questions.about(trap))  # noqa: B023
        if len(found) < MIN_QUESTIONS:
            source.lacks(None, f"trap {trap} has {len(found)} questions for review, expected "
                         f"{MIN_QUESTIONS} or more.",
                         f'Write rows, ask("{trap}", ...), or functions under '
                         f'@question_for("{trap}"), in {folder}q{trap[:2]}.py.',
                         place=f"{folder}q{trap[:2]}.py")


def imported(source: Source, folder: str, load: Callable[[], Any]) -> Any:
    """Return `load()`; refuse, with its line, a file in this folder that cannot be imported."""
    try:
        return load()
    except Exception as error:
        where = solutions.line_of(error, folder)
        source.refuse(None, f"{folder} cannot be imported: {where}{type(error).__name__}: {error}.",
                      f"Mend the file in {folder}.",
                      place=folder + where.removesuffix(": ").replace(", line ", ":"))


def rule_no_learner_answers(source: Source) -> None:
    names = {exercise_function(source, trap).name for trap in source.tasks}
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
            source.lacks(cell, f"line {long[0]} is longer than {MAX_COLUMNS} columns.",
                         "Break it: the page cuts it.",
                         place=f"{source.name}:{source.lines[cell['id']] + long[0]}")
        if len(lines) > MAX_LINES and cell.metadata["role"] not in {"exercise", "setup"}:
            source.lacks(cell, f"it has {len(lines)} lines, expected at most {MAX_LINES}.",
                         "Split it, or move machinery into the package.")


def rule_density(source: Source) -> None:
    """A code cell either teaches or claims, and is short in both cases."""
    for cell in source.of(kind="code"):
        if cell.metadata["role"] in NOT_DENSE:
            continue
        lines = teaching_lines(cell.source)
        if count_claims(cell.source) and not only_claims(cell.source):
            source.lacks(cell, f"it teaches and claims: {lines} lines stand beside its claims.",
                         "Put the claims in a cell of their own, with no function, print or "
                         f"figure and at most {MAX_BESIDE} lines that compute their arguments.")
        if not is_folded(cell) and lines > MAX_TEACHING:
            source.lacks(cell, f"it has {lines} lines of code that teaches, expected at most "
                         f"{MAX_TEACHING}.", "Split it, move machinery into the package, or give "
                         f'a cell that only measures tags=["{PLUMBING}"].')


def rule_claims_in_a_row(source: Source) -> None:
    """A reader takes in a few claims at a time, each after a sentence that asks for it."""
    row = 0
    for cell in source.cells:
        alone = cell.cell_type == "code" and only_claims(cell.source)
        row = row + count_claims(cell.source) if alone else 0
        most = MAX_CLAIMS if cell.metadata["role"] in OPEN else MAX_FOLDED_CLAIMS
        if row > most and cell.metadata["role"] not in NOT_DENSE:
            source.lacks(cell, f"{row} claims follow each other, expected at most {most}.",
                         "Keep the one that the sentence needs and put the others under More, or "
                         "say between them why the next is asked.")


def rule_more(source: Source) -> None:
    """Folded text says what it is about, so that readers need not open it."""
    for trap in source.traps:
        for cell in source.of(trap, "more")[:1]:
            if not cell.metadata.get("topics"):
                source.lacks(cell, "it does not say what is folded.",
                             'Give it topics="rows without a key \u00b7 the whole row in".')
    for cell in source.cells:
        if cell.metadata["role"] in FOLDED and re.search("^#+ ", cell.source, re.M) \
                and cell.cell_type == "markdown":
            source.refuse(cell, "a heading stands in what is folded.", "Say it in bold.")


REFERENCES = re.compile(r"\*\*(?:Source|Seen\s+in\s+the\s+wild):\*\*.*?(?=\*\*|\Z)", re.S)


def open_words(source: Source, trap: str) -> int:
    """The visible words of a trap: its prose and its question, without the references."""
    texts = [REFERENCES.sub("", c.source) for role in OPEN for c in source.of(trap, role)
             if c.cell_type == "markdown" or role == "guess"]
    return sum(bool(re.search(r"\w", word)) for text in texts for word in text.split())


def rule_words(source: Source) -> None:
    for trap in source.traps:
        words = open_words(source, trap)
        if words > MAX_WORDS:
            source.lacks(source.of(trap)[0], f"{words} words of trap {trap} are open, "
                         f"expected at most {MAX_WORDS}.", "Fold what is an exception, a second "
                         "setting or a curiosity under More.")


def rule_pictures(source: Source) -> None:
    """A picture for each idea: a stage has at least six, not counting explorers."""
    found = sum(draws(c.source) for c in source.of(kind="code"))
    if found < MIN_PICTURES:
        source.lacks(None, f"{found} cells end in a figure, expected {MIN_PICTURES} or more.",
                     "Draw what a trap needs, from its own numbers.")


def rule_core_alone(source: Source) -> None:
    """The core path runs alone: no name that it uses comes from a trap off the path."""
    known: set[str] = set()
    elsewhere: dict[str, str] = {}
    for cell in source.of(kind="code"):
        if cell.metadata["role"] == "exercise":
            continue
        names = names_used(cell.source)
        if is_aside(source, cell):
            elsewhere |= dict.fromkeys(names_bound(cell.source), cell["id"])
            continue
        missing = sorted((names - known - names_bound(cell.source)) & elsewhere.keys())
        if missing:
            source.lacks(cell, f"it uses {missing[0]}, which {elsewhere[missing[0]]} defines, off "
                         "the core path.", "Define it on the core path or in the set-up.")
        known |= names_bound(cell.source)


def is_aside(source: Source, cell: NotebookNode) -> bool:
    """Whether a cell belongs to a trap off the core path; explorers belong to the trap above."""
    trap = cell.metadata.get("trap")
    if cell.metadata["role"] == "explore":
        at = next(n for n, one in enumerate(source.cells) if one is cell)
        above = (one for one in reversed(source.cells[:at]) if one.metadata["role"] != "explore")
        trap = next(above).metadata.get("trap") if at else None
    return trap is not None and not source.is_core(trap)


@cache
def names_used(code: str) -> set[str]:
    """The names that a piece of code mentions."""
    return {n.id for n in ast.walk(ast.parse(code)) if isinstance(n, ast.Name)}


@cache
def names_bound(code: str) -> set[str]:
    """The names that a piece of code assigns, in any scope."""
    nodes = [*ast.walk(ast.parse(code))]
    names = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    names |= {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    names |= {n.arg for n in nodes if isinstance(n, ast.arg)}
    return names | {(a.asname or a.name).partition(".")[0] for n in nodes
                    if isinstance(n, ast.Import | ast.ImportFrom) for a in n.names}


def calls(node: ast.AST) -> list[str]:
    """The names of the functions that a piece of code calls directly."""
    return [n.func.id for n in ast.walk(node)
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]


@cache
def count_claims(code: str) -> int:
    """The number of claims in a cell."""
    return calls(ast.parse(code)).count("claim")


@cache
def teaching_lines(code: str) -> int:
    """The number of non-blank lines in a cell that belong to no claim."""
    claimed = {line for node in ast.parse(code).body if "claim" in calls(node)
               for line in range(node.lineno, node.end_lineno + 1)}
    return sum(bool(text.strip()) for n, text in enumerate(code.splitlines(), 1)
               if n not in claimed)


@cache
def only_claims(code: str) -> bool:
    """Whether a cell has only claims and a few lines that compute their values."""
    tree = ast.parse(code)
    defines = any(isinstance(n, ast.FunctionDef | ast.ClassDef) for n in ast.walk(tree))
    shows = {"print", *DRAWS} & {*calls(tree)}
    return (count_claims(code) > 0 and not shows and not defines
            and teaching_lines(code) <= MAX_BESIDE)


@cache
def draws(code: str) -> bool:
    """Whether a cell ends in a figure, and defines no function that another cell might use."""
    tree = ast.parse(code)
    defines = any(isinstance(n, ast.FunctionDef) for n in tree.body)
    return bool(tree.body) and not defines and bool(DRAWS & {*calls(tree.body[-1])})


def is_folded(cell: NotebookNode) -> bool:
    """Whether a code cell shows its outputs and folds its code."""
    code = cell.source
    return only_claims(code) or draws(code) or PLUMBING in cell.metadata.get("tags", [])


NUMBER = re.compile(r"(?<![\w.])(\d+(?:,\d+)*(?:\.\d+)?)(?:\s*(%))?(?![\w.]*\d)")
NOT_PROSE = re.compile(r"`[^`]*`|\$[^$]*\$|\]\([^)]*\)|\*\*Source:\*\*.*|<[^>]+>|\b\d\d\.\d+\b"
                       r"|^\s*\d+\.\s", re.M | re.S)


def rule_numbers(source: Source) -> None:
    """Every number in a trap's prose is also a literal in its code, measured or asserted."""
    for trap in source.traps:
        known = {v for c in source.of(trap, kind="code") for v in literals(c.source)}
        for cell in source.of(trap, kind="markdown"):
            if cell.metadata["role"] == "hint":
                continue
            for text, percent in NUMBER.findall(NOT_PROSE.sub(" ", cell.source)):
                value = float(text.replace(",", ""))
                if not percent and value < 10 and value == int(value):
                    continue  # counting, as in "two layers" or "2 layers"
                wanted = {value, value / 100} if percent else {value}
                if not any(abs(w - k) <= 1e-9 * max(1, abs(w)) for w in wanted for k in known):
                    source.lacks(cell, f"the number {text}{percent} is in no claim and no "
                                 f"code of trap {trap}.", "Measure it, claim it, or drop it.")


def literals(code: str) -> set[float]:
    """Absolute values of all numeric literals in a piece of code."""
    return {abs(float(n.value)) for n in ast.walk(ast.parse(code))
            if isinstance(n, ast.Constant) and type(n.value) in (int, float)}


STUTTER = re.compile(r"(?:right|yes|no|wrong|correct)[.,:;!]", re.I)  # the builder adds it
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
        for _, _, why in choices:
            if STUTTER.match(why):
                source.refuse(cell, f"an explanation begins {why[:20]!r}.",
                              "Begin with the reason: the page says right or no before it.")


def split_quiz(text: str) -> tuple[str, list[tuple[bool, str, str]]]:
    """A quiz cell as its question and its choices: (right, choice, why)."""
    choices = [(mark == "x", " ".join(a.split()), " ".join(b.split()))
               for mark, a, b in QUIZ_CHOICE.findall(text)]
    return text.split("\n- [")[0].strip(), choices


def split_hints(text: str) -> list[str]:
    """The steps of a hint cell, a list numbered 1., 2., 3."""
    return [" ".join(part.split()) for part in re.split(r"^\d\.\s", text, flags=re.M)[1:]]


def rule_explorer(source: Source) -> None:
    for cell in source.of(role="explore", kind="code"):
        name = cell.metadata.get("explorer")
        if name not in explorers.names():
            source.refuse(cell, f"it names the explorer {name!r}.",
                          f'Give it explorer="...", one of {", ".join(explorers.names())}.')
        wanted = f"from dlsys_helpers.explorers.{name} import {name}"
        lines = cell.source.splitlines()
        if (lines[0], lines[-1]) != (wanted, name):
            source.refuse(cell, f'its code does not show explorer="{name}".',
                          f'Begin it with "{wanted}" and end it with "{name}".')


def rule_placeholders(source: Source) -> None:
    for cell in source.cells:
        said = (cell.metadata.get(key, "") for key in ("symptom", "fault", "topics"))
        text = "\n".join([cell.source, *said])
        first = text[text.find(PLACEHOLDER):].partition("\n")[0]
        if PLACEHOLDER in text:
            source.lacks(cell, f"{text.count(PLACEHOLDER)} to do, first {first[:60]!r}.",
                         "Replace what `make new` wrote.")
    stage, checks = f"{source.stage:02d}", ROOT / "src/dlsys_checks"
    for path in [*sorted((checks / f"s{stage}").glob("*.py")), checks / f"questions/q{stage}.py",
                 *sorted((ROOT / f"tests/right_answers/s{stage}").glob("*.py"))]:
        text = path.read_text("utf-8")
        if PLACEHOLDER in text:
            line = text[:text.index(PLACEHOLDER)].count("\n") + 1
            name = path.relative_to(ROOT)
            source.lacks(None, f"{name}, line {line}, says {PLACEHOLDER!r}.",
                         "Replace what `make new` wrote.", place=f"{name}:{line}")


RULES: list[Any] = [rule_syntax, rule_title, rule_parameters, rule_stage_order, rule_trap_order,
                    rule_ids, rule_situation, rule_break, rule_core, rule_guess, rule_quoted,
                    rule_claims, rule_exercises, rule_hints, rule_checks, rule_questions,
                    rule_no_learner_answers, rule_size, rule_density, rule_claims_in_a_row,
                    rule_more, rule_words, rule_pictures, rule_core_alone, rule_numbers, rule_quiz,
                    rule_explorer, rule_count, rule_placeholders]
# *Your model* has no traps.
MODEL_RULES: list[Any] = [rule_syntax, rule_parameters, rule_size, rule_density,
                          rule_claims_in_a_row, rule_pictures, rule_explorer]

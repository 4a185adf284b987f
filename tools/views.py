"""What a lesson becomes: its notebook, the learner's worksheet and the worked answers, not run."""

from __future__ import annotations

import ast
import re
from itertools import pairwise

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from dlsys.work_folder import WAY_IN
from dlsys_checks import registry
from dlsys_helpers import acting, stages
from dlsys_helpers.cards import inline
from dlsys_helpers.catalog import Trap, sentence_case
from dlsys_helpers.lesson_names import YOUR_MODEL
from tools import book_minutes, fingerprints, install_cell, lessons, stored_outputs, words
from tools.lessons import Source

LESSON_ROLES = (lessons.STAGE_ROLES | set(lessons.TRAP_ORDER)) - {"hint"}
COMPARED = {"explore", "look", "why", "repair", "more"}  # nbval compares what their cells print
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}




def all_views(source: Source) -> dict[str, NotebookNode]:
    """The notebooks of one lesson, not run: the lesson, its worksheet, its solutions."""
    if source.stage == 0:
        cells = [lesson_cell(source, c) for c in source.cells]
        return {"lesson": notebook(source, "lesson", with_install(cells)
                                   if source.path.stem == YOUR_MODEL else cells)}
    lesson = with_ways(source, with_steps(source, lesson_cells(source)))
    return {"lesson": notebook(source, "lesson", with_install(lesson)),
            "exercise": notebook(source, "exercise", with_install(worksheet(source))),
            "solution": notebook(source, "solution", solutions(source))}


def notebook(source: Source, view: str, cells: list[NotebookNode]) -> NotebookNode:
    """A notebook with the metadata that readers of it rely on."""
    book = new_notebook(cells=cells, metadata={"kernelspec": KERNEL,
                                               "language_info": {"name": "python"}})
    book.metadata["dlsys"] = {"stage": source.stage, "view": view}
    if source.draft:
        book.metadata["dlsys"]["draft"] = True
        cells.insert(0, new_cell("markdown", "stage-draft-1", DRAFT_TOP, role="draft"))
    if view == "exercise":
        book.metadata["dlsys"]["version"] = version(cells)
    else:
        book.metadata["dlsys"]["rests_on"] = stored_outputs.rests_on(book)
    book.nbformat, book.nbformat_minor = 4, 5
    nbformat.validate(book)
    return book


def with_install(cells: list[NotebookNode]) -> list[NotebookNode]:
    """Insert a folded cell before the first code cell; it installs what is missing."""
    code = [cell for cell in cells if cell.cell_type == "code"]
    if not code:
        return cells
    cell = new_cell("code", "stage-install-1", install_cell.text(c.source for c in code),
                    role=install_cell.ROLE)
    cell.metadata |= {"jupyter": {"source_hidden": True}, "cellView": "form"}
    cell.metadata["tags"].append("plumbing")
    at = cells.index(code[0])
    return [*cells[:at], cell, *cells[at:]]


DRAFT_TOP = ("**Draft, not a finished lesson.** Made by `make build DRAFT=1`, which says what is "
             "missing. Nothing else reads this file.")


def version(cells: list[NotebookNode]) -> str:
    """Fingerprint of a worksheet's stubs and checks: tells an old copy from a new one."""
    code = "\0".join(c.source for c in cells if c.metadata["dlsys"]["role"] in
                     {"exercise", "check"})
    return fingerprints.fingerprint(code)


def new_cell(kind: str, cell_id: str, text: str, **dlsys: object) -> NotebookNode:
    """A cell with a stable id, its role as a tag and its metadata under one key."""
    cell = new_code_cell(text) if kind == "code" else new_markdown_cell(text)
    cell["id"] = cell_id
    cell.metadata = NotebookNode({"dlsys": {k: v for k, v in dlsys.items() if v is not None},
                                  "tags": [f"role-{dlsys['role']}"]})
    return cell


def copied(cell: NotebookNode, text: str | None = None) -> NotebookNode:
    """A source cell for a generated notebook, with other text where given."""
    extra = {k: cell.metadata.get(k) for k in ("trap", "symptom", "explorer")}
    new = new_cell(cell.cell_type, cell["id"], cell.source if text is None else text,
               role=cell.metadata["role"], **extra)
    new.metadata["tags"] += cell.metadata.get("tags", [])
    if cell.cell_type == "code" and lessons.is_folded(cell):
        new.metadata["jupyter"] = {"source_hidden": True}
    return new


def lesson_cells(source: Source) -> list[NotebookNode]:
    """The cells of the lesson; those off the core path get `aside` in their metadata."""
    found = []
    for cell in source.cells:
        if cell.metadata["role"] in LESSON_ROLES:
            found.append(lesson_cell(source, cell))
            if lessons.is_aside(source, cell):
                found[-1].metadata["dlsys"]["aside"] = True
    return found


def lesson_cell(source: Source, cell: NotebookNode) -> NotebookNode:
    """A cell as the lesson shows it: an exercise becomes a link to the worksheet, a quiz folds."""
    role = cell.metadata["role"]
    if role == "exercise":
        return way_to_exercise(source, cell)
    if role == "quiz" and cell.cell_type == "markdown" and "\n- [" in cell.source:
        return copied(cell, fold_quiz(cell.source))
    new = copied(cell)
    if cell.cell_type != "code":
        return new
    answers = lessons.sole_call(cell, "measured")
    # The form shows it all, and the code gives away the answer.
    if role == "guess" or answers or lessons.sole_call(cell, "guess"):
        new.metadata["tags"].append("measured" if answers else "guess")
        new.metadata["jupyter"] = {"source_hidden": True}
    if answers:  # JupyterLab shows the first line of what is folded
        new.source = f"# Back to your guess.\n{cell.source}"
    compares = answers or lessons.only_claims(cell.source)  # each holds its own number to a bound
    if role in COMPARED and cell.metadata.get("compare", True) and not compares:
        new.metadata["tags"].append("nbval-check-output")
    return new


def with_steps(source: Source, cells: list[NotebookNode]) -> list[NotebookNode]:
    """The cells of a lesson with a heading before each step of a trap, and the note of helpers.

    JupyterLab's table of contents is made of headings. The book names the steps in its own way
    and takes these cells, whose role is "step", out again.
    """
    found, seen = [], set()
    for cell in cells:
        role, trap = cell.metadata["dlsys"]["role"], cell.metadata["dlsys"].get("trap")
        step = "more" if role in lessons.FOLDED else role
        if role == "setup" and role not in seen:
            found.append(new_cell("markdown", "stage-note-1", note(source, cells), role="setup"))
            if listed := words.listed(source.cells, source.stage):
                found.append(new_cell("markdown", "stage-words-1", listed, role="words"))
        elif role == "situation" and (trap, role) not in seen:
            title = f"## {source.title(trap)}"
            cell.source = cell.source.replace(title, heading(source, trap), 1)
        elif step in STEPS and (trap, step) not in seen:
            found.append(new_cell("markdown", f"{trap.replace('.', '-')}-{step}-step",
                              f"### {step_title(source, trap, step)}", role="step", trap=trap,
                              aside=cell.metadata["dlsys"].get("aside")))
            if step == "more":
                found[-1].metadata["jp-MarkdownHeadingCollapsed"] = True
        seen |= {role, (trap, step)}
        found.append(cell)
    return found


def heading(source: Source, trap: str) -> str:
    """The heading of a trap: its situation, and whether it is on the core path."""
    return f"## Trap {trap}{CORE if source.is_core(trap) else ''}: {source.title(trap)}"


def step_title(source: Source, trap: str, step: str) -> str:
    """The heading of a step; the cause names the fault, what is folded its topics and claims."""
    if step == "why":
        return f"{STEPS[step]}: {source.fault(trap)}"
    if step != "more":
        return STEPS[step]
    folded = [c for role in lessons.FOLDED for c in source.of(trap, role)]
    topics = [c.metadata["topics"] for c in folded if c.metadata.get("topics")]
    if source.of(trap, "folklore"):
        topics.append("told and measured")
    claims = sum(lessons.count_claims(c.source) for c in folded if c.cell_type == "code")
    count = f" ({claims} claim{'s' * (claims != 1)})" if claims else ""
    return f"{STEPS[step]}: {DOT.join(topics)}{count}"


CORE, DOT = " (core)", " \N{MIDDLE DOT} "
STEPS = {"break": "The code", "guess": "Guess", "look": "Look", "why": "Why", "repair": "Repair",
         "more": "More", "exercise": "Your turn", "keep": "Keep"}


def with_ways(source: Source, cells: list[NotebookNode]) -> list[NotebookNode]:
    """The cells with a link after each trap of the core path to the next one."""
    core = [trap for trap in source.traps if source.is_core(trap)]
    for trap, following in pairwise(core):
        last = max(n for n, c in enumerate(cells) if c.metadata["dlsys"].get("trap") == trap)
        text = f"Next on the core path: {to_trap(source, following)}"
        cells.insert(last + 1, new_cell("markdown", f"{trap.replace('.', '-')}-next-1", text,
                                    role="next", trap=trap))
    return cells


def to_trap(source: Source, trap: str) -> str:
    """A link to the heading of a trap, as JupyterLab names it."""
    title = heading(source, trap).removeprefix("## ")
    return f"[{trap} {source.title(trap)}](#{title.replace(' ', '-')})"


def note(source: Source, cells: list[NotebookNode]) -> str:
    """What a claim is, and each helper that the set-up imports and the lesson does not explain."""
    code = "\n".join(c.source for c in source.of(role="setup", kind="code"))
    imported = {alias.name for node in ast.walk(ast.parse(code))
                if isinstance(node, ast.ImportFrom) for alias in node.names}
    return "\n".join([*past_the_ideas(source), "**Before the first cell**\n",
                      *short_way(source, cells),
                      *(f"- {text}" for name, text in NOTES.items() if name in imported)])


def past_the_ideas(source: Source) -> list[str]:
    """The line that leads past the ideas to the first trap; none if a lesson begins with it."""
    parts = lessons.parts(source)
    if "trap" not in parts or "concept" not in parts[:parts.index("trap")]:
        return []
    # A copy of the core path holds no other trap.
    first = next(filter(source.is_core, source.traps), source.traps[0])
    which = "its first trap" if first == source.traps[0] else "the first trap of its core path"
    return [f"If you already know the ideas of this stage, go straight to {which}, "
            f"{to_trap(source, first)}. In JupyterLab, select the trap's heading and choose "
            "*Run > Run All Above Selected Cell*, which runs the cells that the trap needs.\n"]


def short_way(source: Source, cells: list[NotebookNode]) -> list[str]:
    """The line that names the core path and its minutes; none in an unmarked draft."""
    core = [trap for trap in source.traps if source.is_core(trap)]
    if not core:
        return []
    spent = sum(source.minutes(trap) for trap in core)
    read = book_minutes.between(book_minutes.core(cells))
    if core == source.traps:
        return [f"- All {len(core)} traps of this stage are on the core path: about {read} minutes "
                f"to read, {spent} for the exercises."]
    links = ", ".join(to_trap(source, trap) for trap in core)
    return [f"- The core path is {links}: about {read} minutes to read, {spent} for its exercises. "
            "You can follow the core path on its own and do the other traps when you need them."]


NOTES = {
    "claim": "`claim(text, value, ...)` compares a measured number with a bound. The line below "
             "it shows both, and a ✓ if the number is within the bound. A claim that does not hold "
             "stops the lesson. The code behind each claim is folded; open it to see how the "
             "number was measured.",
    "digits": "`digits()` returns scikit-learn's scans of handwritten digits, 8 x 8 pixels in rows "
              "of 64: 1,300 to train on, 497 to test.",
    "fit": "`fit` is a plain training loop over random batches of 64. It uses the optimizer Adam "
           "unless you pass a different one, and returns the loss of every step.",
    "accuracy": "`accuracy` is the fraction of rows that a model classifies correctly.",
}


def way_to_exercise(source: Source, cell: NotebookNode) -> NotebookNode:
    """The cell that leads from the lesson to the worksheet."""
    trap = cell.metadata["trap"]
    function = lessons.exercise_function(source, trap)
    first = ast.get_docstring(function).partition("\n\n")[0].replace("\n", " ")
    text = (f"**Exercise {trap}: `{function.name}`.** {first}\n\n"
            f"{WAY_IN.format(number=source.stage)} {effort(source.task(trap))}")
    return new_cell("markdown", cell["id"], text, role="exercise", trap=trap)


def effort(task: Trap) -> str:
    """What an exercise costs and brings, as a line."""
    path = "On the core path. " if task.core else ""
    points = "point" if task.points == 1 else "points"
    return (f"{path}{task.points} {points}, difficulty {task.difficulty} of 5, "
            f"about {task.minutes} minutes.")


def fold_quiz(text: str) -> str:
    """A question whose choices unfold into their explanations; needs no kernel and no script."""
    question, choices = lessons.split_quiz(text)
    parts = [question]
    for letter, (right, choice, why) in zip("ABCDEF", choices, strict=False):
        verdict = "Right." if right else "No."
        parts.append(f'<details class="quiz"><summary>{letter}. {inline(choice)}</summary>'
                     f"<p><strong>{verdict}</strong> {inline(why)}</p></details>")
    return "\n\n".join([parts[0], "\n".join(parts[1:])])


def worksheet(source: Source) -> list[NotebookNode]:
    """The learner's worksheet: set-up, then stub, hints and check for each trap."""
    stem, entry = stages.stage(source.stage).stem, stages.stage(source.stage)
    cells = [new_cell("markdown", "stage-top-1", WORKSHEET_TOP.format(
        number=entry.number, title=entry.title, stem=stem), role="setup")]
    cells += setup_cells(source, guarded=True)
    for trap in source.tasks:
        task, cell, key = source.task(trap), source.exercise(trap), trap.replace(".", "-")
        cells.append(new_cell("markdown", f"{key}-task-1",
                              f"## {trap} {task.title}\n\n{effort(task)}",
                              role="exercise", trap=trap))
        cells.append(new_cell("code", cell["id"], stub(cell.source, trap), role="exercise",
                              trap=trap))
        cells.append(new_cell("markdown", f"{key}-hint-1", fold_hints(task), role="hint",
                              trap=trap))
        cells += check_cells(source, task)
    return cells


def setup_cells(source: Source, guarded: bool = False) -> list[NotebookNode]:
    """The set-up for exercises: of the helpers, only those that an answer or a check uses."""
    used = {"begin", "check"}
    for cell in source.of(role="exercise"):
        used |= {n.id for n in ast.walk(ast.parse(cell.source)) if isinstance(n, ast.Name)}
    return [copied(c, fewer_helpers(c.source, used, guarded)) for c in source.of(role="setup")]


def fewer_helpers(code: str, used: set[str], guarded: bool) -> str:
    """The code with its import from the helper package reduced to the names in `used`.

    guarded: the import comes first, and says what to install where it fails. A worksheet travels
    without the course; all other imports stay at the top level, where the grader can repair them.
    """
    lines, first = code.splitlines(), ""
    for node in ast.parse(code).body:
        if isinstance(node, ast.ImportFrom) and node.module == "dlsys_helpers":
            names = [alias.name for alias in node.names if alias.name in used]
            line = f"from dlsys_helpers import {', '.join(names)}"
            lines[node.lineno - 1:node.end_lineno] = [] if guarded else [line]
            first = GUARDED.format(line) if guarded else ""
    rest = "\n".join(lines)
    return first + (re.sub(r"\n{3,}", "\n\n", rest).lstrip("\n") if guarded else rest)


GUARDED = """try:
    import dlsys  # knows where your work lies
    {}
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"{{missing.name}} is not installed here. Run the first code cell of this "
        "notebook: it installs what is missing.") from None

"""

WORKSHEET_TOP = """# Worksheet {number}: {title}

Run the cells below first, and again after a restart. Then write the body of each function, run
its cell, and run the check below it. A check that fails says what it measured and, if it knows your
mistake, names it. One that takes longer than 30 seconds is stopped; where it hangs inside a single
call of a library, and on Windows, you have to restart the kernel yourself. Read
[the lesson](../notebooks/{stem}.ipynb) first."""


def check_cells(source: Source, task: Trap) -> list[NotebookNode]:
    """The check of an exercise; none while a draft has none.

    A draft is in no catalog and in nobody's progress: there the verdict is only printed.
    """
    if source.draft and task.id not in registry.of_stage(source.stage):
        return []
    line = DRAFT_CHECK if source.draft else CHECK
    return [new_cell("code", f"{task.id.replace('.', '-')}-check-1",
                     line.format(trap=task.id, name=task.function),
                     role="check", trap=task.id, points=task.points)]


# Imports what it calls: after a restart it then says itself which cells come first.
CHECK = """from dlsys_helpers import check

check("{trap}", {name})"""
DRAFT_CHECK = """from dlsys_checks.checking import run_check

print(run_check("{trap}", {name}).line())"""


def fold_hints(task: Trap) -> str:
    """The hints of an exercise, each of which unfolds by itself."""
    return "\n".join(f"<details><summary>Hint {n}</summary>{inline(step)}</details>"
                     for n, step in enumerate(task.hints, 1))


def stub(code: str, trap: str) -> str:
    """An exercise's code with the solution replaced by an error that names the exercise."""
    def blank(match: re.Match) -> str:
        indent = re.match(r"[ \t]*", match[0])[0]
        return f'{indent}raise NotImplementedError("exercise {trap} {acting.NOT_WRITTEN}")'
    return lessons.SOLUTION.sub(blank, code)


def solutions(source: Source) -> list[NotebookNode]:
    """Worked answers: set-up, then answer, check and what to keep for each trap."""
    entry = stages.stage(source.stage)
    cells = [new_cell("markdown", "stage-top-1",
                  f"# Worked answers {entry.number}: {entry.title}", role="setup")]
    cells += setup_cells(source)
    for trap in source.tasks:
        task, cell = source.task(trap), source.exercise(trap)
        fault = sentence_case(task.fault)  # none in a draft
        cells.append(new_cell("markdown", f"{trap.replace('.', '-')}-task-1",
                              f"## {trap} {fault or task.title}", role="exercise",
                              trap=trap))
        cells.append(new_cell("code", cell["id"], answer(cell.source), role="exercise", trap=trap))
        checks = check_cells(source, task)
        for checked in checks:
            checked.metadata["tags"].append("nbval-check-output")
        cells += [*checks, *map(copied, source.of(trap, "keep"))]
    return cells


def answer(text: str) -> str:
    """An exercise's code without the marks around its solution."""
    return re.sub(r"^[ \t]*# (BEGIN|END) SOLUTION\n?", "", text, flags=re.M).rstrip()


def as_text(book: NotebookNode) -> str:
    return nbformat.writes(book, version=4) + "\n"

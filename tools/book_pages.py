"""The generated pages of the book, as Markdown; every function here returns text."""

from __future__ import annotations

import ast
import html
import re
from collections.abc import Iterable, Iterator, Sequence

from docutils.nodes import make_id
from nbformat import NotebookNode

from dlsys import assignments
from dlsys_checks import registry
from dlsys_helpers import catalog, gpu_records
from dlsys_helpers.paths import ROOT
from dlsys_helpers.stages import STAGES, Stage, stage
from tools import book_minutes, gpu_evidence, gpu_tables, solutions
from tools import proof as proofs

# Goes before a question. Without a script nothing is hidden. guess_first.js explains `which`.
GUESS_FIRST = """<script src="{up}site/guess_first.js"{which}></script>
<link rel="stylesheet" href="{up}explorers/guess.css">
<script defer src="{up}explorers/guess.js"></script>"""
RESULTS = ROOT / "benchmarks" / "RESULTS.md"
SILENT = ROOT / "benchmarks" / "silent" / "RESULTS.md"
Lessons = dict[int, NotebookNode]


def generated(lessons: Lessons) -> dict[str, str]:
    """The generated reference pages, by name, in the order of the contents."""
    pages = {"traps": traps_page(lessons), "wrong_answers": wrong_answers_page(list(lessons)),
             "errata": errata_page(lessons), "gpu_evidence": gpu_page(lessons)}
    if RESULTS.exists():
        pages["benchmarks"] = RESULTS.read_text("utf-8")
    if SILENT.exists():
        pages["silent_traps"] = SILENT.read_text("utf-8")
    return pages


def label(kind: str, trap: str) -> str:
    """The link target of a trap or exercise: ``trap-01-1``."""
    return f"{kind}-{trap.replace('.', '-')}"


def part_of(number: int, heading: str, before: str = "") -> str:
    """A link to a part of a lesson by its heading, as HTML; the link test checks that it exists.

    before: words in the link before the heading, such as "Lesson 3: ".
    """
    shown = html.escape(heading.removeprefix("Further: ").replace("`", ""), quote=False)
    return f'<a href="{address_of(number, heading)}">{before}{shown}</a>'


def address_of(number: int, heading: str) -> str:
    """The address of a part of a lesson, by its heading."""
    return f"notebooks/{stage(number).stem}.html#{make_id(heading)}"


def link(kind: str, trap: str, text: str) -> str:
    """Markdown that links to a trap in its lesson or to its exercise."""
    return f"{{ref}}`{text.replace('`', '')} <{label(kind, trap)}>`"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; cells are Markdown on one line."""
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(c.replace("|", "\\|").replace("\n", " ") for c in cells) + " |"
    return "\n".join([line(head), line(["---"] * len(head)), *map(line, rows)])


def count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def exercise_minutes(number: int) -> int:
    return sum(t.minutes for t in catalog.traps(number))


def plain(text: str) -> str:
    """Escape text, so that Markdown shows it unchanged."""
    return re.sub(r"([\\`*_{}\[\]<>$|#~])", r"\\\1", text)


def traps_page(lessons: Lessons) -> str:
    parts = ["# Trap index",
             "Every trap of the course has a permanent number: the stage, then the trap's place in "
             "that stage. A trap has the same number in its lesson, in its exercise, in your "
             "progress and in a check's feedback. *Core* traps are the short way through a "
             "stage: at most five, with at most an hour of exercises. In the lesson, a trap's "
             "heading names the situation, because the fault's name would give the answer away.",
             book_minutes.formula()]
    for entry in STAGES:
        found = assignments.by_number(entry.number)
        if found and entry.number in lessons:
            rows = [(t.id, f"[{plain(t.name)}](traps/{t.id.replace('.', '-')}.md)",
                     link("trap", t.id, t.title), link("exercise", t.id, t.function),
                     f"{'core, ' if t.core else ''}{t.difficulty} of 5, "
                     f"{count(t.points, 'point')}",
                     f"{book_minutes.of_trap(lessons[entry.number], t.id)} + {t.minutes}")
                    for t in found]
            head = ("Trap", "The fault", "The situation in its lesson", "Exercise",
                    "Path, difficulty, points", "Minutes to read + solve")
            parts += [f"## {entry.number}. {entry.title}",
                      f":::{{div}} rows\n{table(head, rows)}\n:::"]
    return "\n\n".join(parts) + "\n"


WRONG = "wrong_answers/{:02d}"  # the page of a stage, below that of all


def wrong_answers_page(stages: Sequence[int]) -> str:
    """The overview of the kill matrix: how many wrong answers there are, and each stage's page."""
    rows = [(f"[{number}. {stage(number).title}]({WRONG.format(number)}.md)",
             str(len(catalog.traps(number))),
             str(sum(len(registry.find(t.id).wrong_answers) for t in catalog.traps(number))))
            for number in stages]
    total = sum(int(row[-1]) for row in rows)
    return "\n\n".join([
        "# Wrong answers",
        "A check is only as good as the wrong answers that it rejects. Each exercise comes "
        f"with answers that look right but are wrong, {total:,} in all. We ran every wrong "
        "answer through its check; each stage's page shows the messages that learners get.",
        table(("Stage", "Exercises", "Wrong answers"), rows)]) + "\n"


def wrong_answers(stages: Iterable[int]) -> dict[str, str]:
    """The kill matrix, one page per stage, by name: each wrong answer, and what its check says."""
    return {WRONG.format(number): wrong_answers_of(stage(number)) for number in stages}


def wrong_answers_of(entry: Stage) -> str:
    parts = [f"# Wrong answers of stage {entry.number}",
             f"{entry.title}: the wrong answers that the checks reject and, in the right column, "
             "the message that a learner gets. [All stages](../wrong_answers.md)."]
    for trap in catalog.traps(entry.number):
        told = proofs.feedback_by_mistake(trap.id)
        rows = [(plain(name), plain(message)) for name, message in told.items()]
        parts += [f"## {trap.id} `{trap.function}`",
                  f"{plain(trap.name)}. {link('exercise', trap.id, 'Try it')}. {proof(trap.id)}",
                  table(("The wrong answer", "What the check says"), rows)]
    return "\n\n".join(parts) + "\n"


def proof(id: str) -> str:
    """One sentence on what else proves a check: other right answers, and mutants of the answer."""
    routes, record = len(solutions.with_kept_answers(id).right_answers), proofs.RECORD.entry(id)
    if not record:
        return f"In addition, {routes} right answers by other routes pass."
    mutant, seeds = record["mutants"], record["right"]["seeds"]
    equal = f", {len(mutant['equivalent'])} compute the same" if mutant["equivalent"] else ""
    return (f"In addition, {routes} right answers by other routes pass on {seeds:,} seeds, and of "
            f"{mutant['mutants']} mechanical changes to the worked answer, {mutant['killed']} are "
            f"rejected{equal}.")


def errata_page(lessons: Lessons) -> str:
    parts = ["# Told and measured",
             "This page compares advice from courses, posts and comments with what the traps "
             "of this course measure. Each entry links to the cells with which you can test "
             "the advice."]
    for number, notebook in lessons.items():
        cells = [c for c in notebook.cells if c.metadata.get("dlsys", {}).get("role") == "folklore"
                 and c.cell_type == "markdown" and "**Told:**" in c.source]
        if cells:
            parts.append(f"## {number}. {stage(number).title}")
        parts += [folklore(c) for c in cells]
    return "\n\n".join(parts) + "\n"


def folklore(cell: NotebookNode) -> str:
    """One entry of the errata page, without its heading, which would break the page's order."""
    text = told_and_measured(without_heading(cell.source))
    trap = cell.metadata.dlsys.get("trap")
    title = f"**{trap} {link('trap', trap, catalog.trap(trap).name)}**\n\n" if trap else ""
    return f":::::{{div}} role-folklore\n{title}{text}\n:::::"


STATES = {"recorded": "recorded", "stale": "recorded with an earlier version of its cell",
          "missing": "not recorded yet"}


def gpu_page(lessons: Lessons) -> str:
    found = gpu_evidence.evidence()
    recorded = sum(e["state"] == "recorded" for e in found)
    rows = [(f"`{e['key']}`",
             f"[Stage {int(e['notebook'][:2])}](notebooks/{e['notebook']}.ipynb)",
             STATES[e["state"]] + (f", {e['provenance']['device']}" if e["provenance"] else ""))
            for e in found]
    parts = ["# GPU evidence",
             "Some measurements need a GPU. Results recorded on a GPU are stored with the course "
             f"and shown on machines without one: {recorded} of {len(found)} so far. "
             "Latency, bandwidth and rates are never simulated. This page lists every "
             "measurement that a lesson declares, with the state of its record. To add records "
             "from your own card, run `make record` in a checkout of the course: the command "
             "takes all measurements and stores those that satisfy the lessons' claims.",
             table(("Measurement", "Lesson", "State"), rows) if rows else
             "No lesson declares a measurement yet."]
    parts[2:2] = predictions(lessons)
    return "\n\n".join([*parts, *(record(e) for e in found if e["state"] == "recorded")]) + "\n"


def predictions(lessons: Lessons) -> list[str]:
    """How good the lessons' predictions were: a figure, and the predictions furthest off."""
    found = [pair for number, notebook in lessons.items()
             for pair in gpu_tables.pairs(f"{number:02}", htmls(notebook))]
    if not found:
        return []
    return [f"## {gpu_tables.finding(found)}", raw(gpu_tables.drawing(found)),
            "Each mark is a number that a lesson predicted without timing anything, from a "
            "datasheet and from counted bytes, FLOPs or operations sent to the GPU: a square for "
            "bytes, "
            "a dot for anything else. The band contains the predictions that came within 20 % "
            "of the "
            "measurement. A prediction from the peak rate of the multipliers is a lower bound on "
            "the time, because nothing reaches that rate. A predicted gap is an upper bound, and "
            "a smaller gap is better. Each number was measured in a single run. The table "
            "lists the predictions that are furthest off; the lessons say what these "
            "predictions leave out.",
            table(("Stage", "Asked", "Predicted", "Measured"), [
                (f"[{int(pair.stage)}](notebooks/{stage(int(pair.stage)).stem}.ipynb)",
                 plain(pair.asked), pair.predicted, pair.measured)
                for pair in gpu_tables.furthest(found)]),
            "## All measurements"]


def htmls(notebook: NotebookNode) -> Iterator[str]:
    """The HTML outputs of a notebook."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "text/html" in output.get("data", {}):
                yield output.data["text/html"]


def record(entry: dict) -> str:
    """One recorded measurement: its provenance and its rows."""
    rows = gpu_records.load_record(entry["key"])["rows"]
    shown = gpu_records.GpuResult(entry["key"], tuple(entry["columns"]), entry["state"], rows,
                                  entry["provenance"])
    return f"## {entry['key']}\n\n{raw(gpu_tables.labelled(shown._repr_html_()))}"


def raw(text: str) -> str:
    """HTML for a page, which shows it unchanged."""
    return f"`````{{raw}} html\n{text}\n`````"


def folded(cell: NotebookNode) -> bool:
    return bool(cell.metadata.get("jupyter", {}).get("source_hidden"))


def defined_names(code: str) -> list[str]:
    """The functions and classes that code defines."""
    return [node.name for node in ast.parse(code).body
            if isinstance(node, ast.FunctionDef | ast.ClassDef)]


def in_a_sentence(names: Sequence[str]) -> str:
    """Join names for a sentence: "a, b and c"."""
    *first, last = names or [""]
    return f"{', '.join(first)} and {last}" if first else last


def unfolded(cells: list[NotebookNode]) -> list[NotebookNode]:
    """The cells whose code is not folded."""
    return [c for c in cells if not folded(c)]


def fenced(cell: NotebookNode) -> str:
    return f"```python\n{without_reports(cell.source)}\n```"


def without_reports(code: str) -> str:
    """Code up to its last print, without the lines that only report."""
    reports = [node for node in ast.parse(code).body if reporter(node)]
    end = max((n.lineno for n in reports if reporter(n) == "print"), default=len(code))
    dropped = {line for n in reports for line in range(n.lineno, n.end_lineno + 1)}
    lines = enumerate(code.splitlines(), 1)
    return "\n".join(text for n, text in lines if n < end and n not in dropped).strip()


def reporter(node: ast.stmt) -> str:
    """The name of the call if the statement only reports, as `print` does; else ""."""
    call = node.value if isinstance(node, ast.Expr) else None
    name = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
    return name if name in {"print", "claim"} else ""


def told_and_measured(text: str) -> str:
    """A folklore cell with the measured part in a separate paragraph."""
    return re.sub(r"\s+(?=\*\*Measured:\*\*)", "\n\n", text)


def without_heading(text: str) -> str:
    return re.sub(r"^#+ .*\n+", "", text)

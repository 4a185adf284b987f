"""The page "Where to begin", as Markdown, and the data that its script reads.

The questions are those of `dlsys review`, each drawn once. book/assets/placement/placement.js asks
and judges by the model of dlsys/placement_model.py, whose numbers come with the questions.
"""

from __future__ import annotations

import base64
import json
import random

from dlsys import placement
from dlsys import placement_model as model
from dlsys_checks import questions
from dlsys_helpers import catalog
from tools import book_pages
from tools import placement as measured

TITLE = "Where to begin"
NEEDS_SCRIPT = ("This part of the page is a program in JavaScript. Without it, answer the same "
                "kind of questions in a terminal: dlsys placement")


def page() -> str:
    of, found = model.course(), measured.RECORD.entries()
    every = found["all"]
    return "\n\n".join([
        f"# {TITLE}",
        f"The core path has {len(of.ids)} traps and takes {sum(of.minutes) / 60:.0f} hours with "
        f"its exercises. You may not need all of it. Answer {model.LEAST} to {model.MOST} "
        "questions, and you are told which traps to take today, which come after that, which to "
        "skip, and why. *I do not know* is a better answer than luck.",
        book_pages.raw(
            '<link rel="stylesheet" href="diffs/diffs.css">\n'
            f'<div class="diffs" id="placement"><p>{NEEDS_SCRIPT}</p></div>\n'
            '<script defer src="placement/data.js"></script>\n'
            '<script defer src="placement/placement.js"></script>'),
        "In a terminal, `dlsys placement` does the same with fresh numbers. It also counts what "
        "you have solved and guessed, may be interrupted at any time, and changes what the start "
        "page and `dlsys progress` tell you to do next. Whatever you answered wrong or skipped "
        "comes back in `dlsys review`, first what you were sure of. On this page, answers stay in "
        "your browser.",
        "## How it decides",
        "Each stage builds on a few others. An answer says most about its own trap, something "
        "about the others of its stage and about stages that build on it, and a little about all "
        "the rest. The next question is the one whose answer leaves the least doubt about your "
        "time. "
        f"A trap is skipped if you probably know it, from {percent(model.SKIP)} on.",
        "## How well it does",
        f"We let {measured.LEARNERS * len(measured.KINDS)} simulated learners of "
        f"{len(measured.KINDS)} kinds answer, whose gaps we know. They slip in one of ten answers, "
        "try their luck, and are drawn by rules of their own and not by the placement's. Over all "
        f"of them, the plan holds {percent(every['found'])} of the gaps and takes "
        f"{percent(every['spent'])} of the core path's time. As much time spent on the core path "
        f"from its beginning meets {percent(every['same_time'])} of the gaps. Of the gaps that "
        f"exist, the first ten hours of the plan meet {percent(every['first'])}, and the first ten "
        f"hours of the core path {percent(every['first_core'])}.",
        table(found),
        "Fifteen questions cannot find single holes in what somebody knows well: the last row says "
        "so. If you know most of the course, [the exam](how_to_use.md) and the [symptom "
        "finder](symptoms.md) are better places to begin. No person has been measured yet."]) + "\n"


def table(found: dict[str, dict]) -> str:
    """The record, a row for each kind of learner."""
    head = ("a learner who", "gaps in the plan", "time of the plan", "gaps in as much core path",
            "first ten hours: plan", "first ten hours: core path", "questions")
    names = ("found", "spent", "same_time", "first", "first_core")
    return book_pages.table(head, [
        (kind, *(percent(found[kind][name]) for name in names), f"{found[kind]['asked']:.0f}")
        for kind in measured.KINDS])


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def script() -> str:
    """The data of the page's script."""
    of = model.course()
    numbers = {
        "level": model.LEVEL, "of_stage": model.OF_STAGE, "leans": model.LEANS, "step": model.STEP,
        "middle": model.MIDDLE, "slips_not": model.SLIPS_NOT, "luck": model.LUCK,
        "least": model.LEAST, "most": model.MOST, "enough": model.ENOUGH, "skip": model.SKIP,
        "today": placement.TODAY,
        "needs": [[stage, list(needs)] for stage, needs in model.NEEDS.items()]}
    items = [item(id, minutes) for id, minutes in zip(of.ids, of.minutes, strict=True)]
    return ("window.dlsysPlacement = "
            f"{json.dumps({'model': numbers, 'items': items}, separators=(',', ':'))};\n")


def item(id: str, minutes: int) -> dict:
    """A trap with one of its questions; what is right is packed, as nobody reads it by accident."""
    trap, question = catalog.trap(id), questions.about(id)[0](random.Random(48))
    truth = {"answer": question.answer, "within": question.within, "shown": question.shown,
             "why": question.why}
    return {"id": id, "stage": int(id[:2]), "title": trap.title, "minutes": minutes,
            "difficulty": trap.difficulty, "page": f"traps/{id.replace('.', '-')}.html",
            "text": question.text, "form": question.form, "options": question.options,
            "packed": base64.b64encode(json.dumps(truth).encode()).decode()}

"""The page "Where to begin", as Markdown, and the data that its script reads.

The questions are those of `dlsys review`, each drawn once. book/assets/placement/placement.js picks
and scores them by the model in dlsys/placement_model.py, whose numbers come with the questions.
"""

from __future__ import annotations

import base64
import json
import random

from dlsys import placement
from dlsys import placement_model as model
from dlsys_checks import questions
from dlsys_helpers import catalog, stages
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
        f"its exercises. Perhaps you do not need the whole path. Answer {model.LEAST} to "
        f"{model.MOST} "
        "questions, and the page says which traps to take today, which to take later, which to "
        "skip, and why. *I do not know* is a better answer than a lucky guess.",
        book_pages.raw(
            '<link rel="stylesheet" href="diffs/diffs.css">\n'
            f'<div class="diffs" id="placement"><p>{NEEDS_SCRIPT}</p></div>\n'
            '<script defer src="placement/data.js"></script>\n'
            '<script defer src="site/form.js"></script>\n'
            '<script defer src="placement/placement.js"></script>'),
        "In a terminal, `dlsys placement` does the same with fresh numbers. The command also "
        "takes into account what you have solved and guessed, can be interrupted at any time, and "
        "changes what the start page and `dlsys progress` tell you to do next. Questions that "
        "you answered wrong or skipped come back in `dlsys review`, beginning with your "
        "confident mistakes. On this page, your answers "
        "stay in your browser.",
        "## How it decides",
        "Each stage builds on a few others. An answer says most about the question's own trap, "
        "something about the other traps of the stage and about the stages that build on this "
        "stage, and a little about all other traps. The page always asks the question whose "
        "answer leaves the least doubt about your time. "
        "The plan skips a trap if the probability that you know it is at least "
        f"{percent(model.SKIP)}.",
        "## How well it does",
        f"We let {measured.LEARNERS * len(measured.KINDS)} simulated learners of "
        f"{len(measured.KINDS)} kinds, whose gaps we know, answer the questions. The learners "
        "slip in one out of ten answers, sometimes guess, and are drawn by rules that differ "
        "from the placement's own. Over all of these learners, the plan contains "
        f"{percent(every['found'])} of the gaps and takes "
        f"{percent(every['spent'])} of the core path's time. The same time spent on the core path "
        f"from its beginning covers {percent(every['same_time'])} of the gaps. Of all gaps, the "
        f"first ten hours of the plan cover {percent(every['first'])}, and the first ten "
        f"hours of the core path {percent(every['first_core'])}.",
        table(found),
        "Fifteen questions cannot find isolated gaps in the knowledge of somebody who knows most "
        "of the course, as the last row shows. If you know most of the course, [the "
        "exam](how_to_use.md) and the [symptom "
        "finder](symptoms.md) are better places to begin. We have not tried the placement with "
        "real people yet."]) + "\n"


def table(found: dict[str, dict]) -> str:
    """The record as a table, with a row for each kind of learner."""
    head = ("a learner who", "gaps in the plan", "time of the plan",
            "gaps in the same time on the core path", "first ten hours: plan",
            "first ten hours: core path", "questions")
    names = ("found", "spent", "same_time", "first", "first_core")
    return book_pages.table(head, [
        (kind, *(percent(found[kind][name]) for name in names), f"{found[kind]['asked']:.0f}")
        for kind in measured.KINDS])


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def script() -> str:
    """The data that the page's script reads."""
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
    """A trap with one of its questions; the answer is packed, so you cannot read it by accident."""
    trap, question = catalog.trap(id), questions.about(id)[0](random.Random(48))
    truth = {"answer": question.answer, "within": question.within, "shown": question.shown,
             "why": question.why}
    return {"id": id, "stage": int(id[:2]), "title": trap.title, "minutes": minutes,
            "difficulty": trap.difficulty, "page": f"traps/{id.replace('.', '-')}.html",
            "text": question.text, "form": question.form, "options": question.options,
            "of": stages.stage(int(id[:2])).title,
            "packed": base64.b64encode(json.dumps(truth).encode()).decode()}

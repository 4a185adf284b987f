"""The page "Review a change", as Markdown, and the data that its script reads.

The page needs no kernel and no network: changes, files and recorded runs are in one script next
to it. The right answers are packed, so that neither a search in the page nor a glance at its source
gives them away. book/assets/diffs/diffs.js shows a change as the terminal does and scores it by the
same rules.
"""

from __future__ import annotations

import base64
import json
from collections import Counter

from dlsys import review_diff
from dlsys_diffs import case_files, reading, recorded, repository
from dlsys_diffs.case_files import Case
from tools import book_pages

TITLE = "Review a change"
NEEDS_SCRIPT = ("This part of the page is a program in JavaScript. Without it, review the same "
                "changes in a terminal: dlsys review-diff")


def page() -> str:
    cases = case_files.cases().values()
    lines = sum(text.count("\n") for text in repository.files().values())
    kinds = Counter(case.kind for case in cases)
    bench = "[Auditing Sabotage Bench](https://arxiv.org/abs/2604.16286)"
    return "\n\n".join([
        f"# {TITLE}",
        "At work, nobody points out the fault. A colleague or a coding agent sends you a change "
        "with a description that says that all is well, and usually all is well. This page shows "
        f"{len(cases)} small changes to one training repository of {lines} lines: "
        f"{kinds['healthy']} are healthy, {kinds['changed']} have a fault in the lines that were "
        "changed, and "
        f"{kinds['omitted']} are incomplete: they lack a line, such as one that saves a new "
        "state in the checkpoint, or leave a value unchanged that should have changed as well. "
        "Incomplete changes are the hardest to judge, because every line in the diff is right.",
        "Read the change. Open the files that the change touches, and also the files that it "
        "does not touch. You may ask for *one* recorded run, with and without the change, so "
        "first decide which run would confirm your suspicion; if you open the change again, "
        "you see the same run. Then mark a line, say how sure you are that the change is "
        "faulty, say what a "
        "user of the code would notice, and choose the edit that repairs the fault. As in most "
        "pull requests, something harmless in the change often looks just as suspicious as a "
        "fault. "
        "After your last answer, the page says what was right, what you said instead, and why.",
        book_pages.raw(
            '<link rel="stylesheet" href="diffs/diffs.css">\n'
            f'<div class="diffs" id="diffs"><p>{NEEDS_SCRIPT}</p></div>\n'
            '<script defer src="diffs/data.js"></script>\n'
            '<script defer src="site/form.js"></script>\n'
            '<script defer src="diffs/diffs.js"></script>'),
        "## How it is scored",
        f"The scores are those used by {bench}, whose best model had an AUROC of 0.77 and repaired "
        "42 % of the faults at the first attempt; people with a model's help struggled as well. "
        "That benchmark's repositories are larger than this one, so compare your score only "
        "with your own earlier scores.",
        "- **AUROC of your confidence**: take a faulty and a healthy change at random. How "
        "often were you more sure of a fault in the faulty change? Guessing gives 0.50, and so "
        "does calling everything faulty.\n"
        "- **Repaired at the first attempt**: how many of the faulty changes you repaired "
        "correctly. We also ran the wrong repairs, and none of them removes the fault. In a "
        "terminal you can type the edit. A typed edit counts in any spelling that computes the "
        "same, and if a changed line is at fault, the old lines count as a repair.\n"
        "- **Healthy changes accused**: healthy changes that you were more than 50 % "
        "sure are faulty. Nobody listens for long to a reviewer who cries wolf.",
        "Only your first answer to a change counts. Half of the changes belong to form a and half "
        "to form b, matched by kind, so review form a before the course and form b after it "
        "(`dlsys review-diff --form a`, and `--score`). On this page, your answers stay in your "
        "browser; in a terminal, they stay in `my-work/.diffs.jsonl`. Nobody grades your "
        "answers. A class can review the same changes together, on phones, with `dlsys room "
        "--review`, see [the room](room.md).",
        "## What is proven",
        "We ran every change. A fault moves its measured number by more than three standard "
        "deviations over five seeds, or by an exact amount if the number does not vary between "
        "seeds; the right repair moves the number back; a healthy change moves no number in "
        "its run. A reviewer who looks only at the length of the diff, at the author's style "
        "or at "
        "how convincing the description is scores no better than a guess. Each run takes less "
        "than a second on a CPU, and `make diffs` records all runs again.",
        "## Where the changes come from",
        "Each change is modelled on a public fix or report and written from scratch. For a "
        "healthy change, the list names the fault that the change resembles but does not have. "
        "The links reveal the faults, so review the changes before you open the list.",
        "<details><summary>The sources</summary>\n\n" + sources() + "\n\n</details>"]) + "\n"


def sources() -> str:
    found = sorted({case.source for case in case_files.cases().values()}, key=str.lower)
    return "\n".join(f"- [{source}](https://github.com/{source.replace('#', '/issues/')})"
                     for source in found)


def script() -> str:
    """The data that the page's script reads."""
    runs = recorded.all_of()
    found = {"files": dict(repository.files()), "runs": review_diff.RUNS, "before": runs["before"],
             "cases": [shown(case) | {"after": runs["after"][case.id]}
                       for case in case_files.cases().values()]}
    return f"window.dlsysDiffs = {json.dumps(found, separators=(',', ':'))};\n"


def shown(case: Case) -> dict:
    """A change as the script needs it; the right answer is packed."""
    consequences = review_diff.shuffled(case, len(case.consequences), 0)
    repairs = review_diff.shuffled(case, len(case.repairs), 1)
    return {"id": case.id, "form": case.form, "title": case.title, "text": case.text,
            "digest": case.digest,
            "diff": [[line.sign, line.text, line.file, line.at] for line in case.diff],
            "edits": [list(edit) for edit in case.edits],
            "consequences": [case.consequences[n] for n in consequences],
            "repairs": ["\n".join(reading.repair_lines(case, n)) for n in repairs],
            "packed": packed(case, consequences, repairs)}


def packed(case: Case, consequences: list[int], repairs: list[int]) -> str:
    """The right answer, as text that you cannot read by accident."""
    truth = {"kind": case.kind, "run": case.run, "number": case.number, "source": case.source,
             "why": case.why,
             "measured": recorded.measured(case.id, case.run, case.number) if case.faulty else "",
             "near": reading.near(case), "places": case.places,
             "consequence": consequences.index(0) if case.faulty else -1,
             "repair": repairs.index(0) if case.faulty else -1}
    return base64.b64encode(json.dumps(truth).encode()).decode()

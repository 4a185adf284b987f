"""The page "Review a change", as Markdown, and the data that its script reads.

The page asks neither a kernel nor a network: changes, files and recorded runs are in one script
next to it, and what is right is packed in it, so that neither a search in the page nor a glance
at its source tells it. book/assets/diffs/diffs.js shows a change as the terminal does and scores
it by the same rules.
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
        "At work, nobody shows you the fault. You see a change by a colleague or a coding agent, "
        "its description says that all is well, and mostly it is. Here are "
        f"{len(cases)} small changes to one training repository of {lines} lines: "
        f"{kinds['healthy']} are healthy, {kinds['changed']} have a fault in what was changed, and "
        f"{kinds['omitted']} lack a line that should have come along, such as a new state that no "
        "checkpoint holds. Faults of the last kind are the hardest to see, because the diff shows "
        "only good lines.",
        "Read the change. Open the files that it touches, and those that it does not. You may ask "
        "for *one* recorded run, before and after, so decide first which run would show your "
        "suspicion. Then mark a line, say how sure you are that the change is faulty, say what "
        "somebody would see of it, and choose the edit that repairs it. As in most pull requests, "
        "something else often comes along, and looks as suspicious as the rest. You are told what "
        "was right, and why, after your last answer.",
        book_pages.raw(
            '<link rel="stylesheet" href="diffs/diffs.css">\n'
            f'<div class="diffs" id="diffs"><p>{NEEDS_SCRIPT}</p></div>\n'
            '<script defer src="diffs/data.js"></script>\n'
            '<script defer src="diffs/diffs.js"></script>'),
        "## How it is scored",
        f"As in {bench}, whose best model had an AUROC of 0.77 and repaired 42 % of the faults at "
        "the first attempt; people with a model's help struggled as well. Its "
        "repositories are larger than this one, so compare yourself with yourself.",
        "- **AUROC of your confidence**: take a faulty and a healthy change at random. How often "
        "were you surer of the faulty one? Guessing gives 0.50, and so does calling everything "
        "faulty.\n"
        "- **Repaired at the first attempt**: of the faulty changes, how many got the right "
        "repair. The wrong repairs were run as well: the fault is still there after each of "
        "them.\n"
        "- **Healthy changes accused**: healthy changes that you were more than 50 % sure of. A "
        "reviewer who cries wolf is soon not heard.",
        "Only your first answer to a change counts. Half of the changes are form a and half are "
        "form b, matched by kind: review form a before the course and form b after it "
        "(`dlsys review-diff --form a`, and `--score`). On this page, answers stay in your "
        "browser; in a terminal, in `my-work/.diffs.jsonl`. Nobody grades them.",
        "## What is proven",
        "Every change was run. A fault moves its number by more than three standard deviations "
        "over five seeds, or exactly where the number does not vary; the right repair moves it "
        "back; a healthy change moves no number of its run. Whoever looks only at the length of "
        "the diff, at the author's style or at how convincing the description is, scores like "
        "somebody who guesses. All runs take a CPU less than a second each, and `make diffs` "
        "records them again.",
        "## Where the changes come from",
        "Each is modelled on a public fix or report and written anew. A healthy change names the "
        "fault that it resembles and does not have. Following a link tells you about that fault, "
        "so review first.",
        "<details><summary>The sources</summary>\n\n" + sources() + "\n\n</details>"]) + "\n"


def sources() -> str:
    found = sorted({case.source for case in case_files.cases().values()}, key=str.lower)
    return "\n".join(f"- [{source}](https://github.com/{source.replace('#', '/issues/')})"
                     for source in found)


def script() -> str:
    """The data of the page's script."""
    runs = recorded.all_of()
    found = {"files": dict(repository.files()), "runs": review_diff.RUNS, "before": runs["before"],
             "cases": [shown(case) | {"after": runs["after"][case.id]}
                       for case in case_files.cases().values()]}
    return f"window.dlsysDiffs = {json.dumps(found, separators=(',', ':'))};\n"


def shown(case: Case) -> dict:
    """A change as its script needs it; what is right is packed."""
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
    """What is right, as text that nobody reads by accident."""
    truth = {"kind": case.kind, "run": case.run, "number": case.number, "source": case.source,
             "why": case.why,
             "near": reading.near(case), "places": case.places,
             "consequence": consequences.index(0) if case.faulty else -1,
             "repair": repairs.index(0) if case.faulty else -1}
    return base64.b64encode(json.dumps(truth).encode()).decode()

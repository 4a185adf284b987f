"""The page of SilentTraps: what it is, and its table, from table.json and answers.json.

    .venv/bin/python -m benchmarks.silent.page
"""

from __future__ import annotations

import collections
import json
from typing import Any

from benchmarks.silent import admit, build, play, score
from tools.book_pages import table

TARGET = build.FOLDER / "RESULTS.md"
TABLE = build.FOLDER / "table.json"
SHOWN = {"curves": "curves of a run, next to the curves of two healthy runs",
         "probes": "ten probes with prices, bought one by one",
         "source": "a runnable program in one file",
         "diff": "a change to a training repository, with its description"}
WHAT = {"random": "a confidence, a cause and a line, drawn at random",
        "range": "takes the first numbers outside their healthy range; `dlsys find` names the "
                 "cause",
        "buys everything": "counts the numbers of all probes that are outside their healthy range. "
                           "It detects all faults, so in this form the price and the cause are "
                           "left to find",
        "distance": "how far the curves are from the two earlier runs. It detects nearly all "
                    "faults, so in this form only the cause is left to find",
        "finder": "`dlsys find` on the description of a change",
        "watch": "`dlsys watch --hints` on the program",
        "same": "`dlsys same` on the repository before and after the change",
        "always faulty": "cheat: always 0.9, and always the same cause",
        "names everything": "cheat: every cause and every line",
        "reads the case file": "cheat: uses what the case file gives away",
        "keeps notes": "cheat: looks for another case with the same seeds",
        "compares the cases": "cheat: looks for what only one program in the file has or lacks",
        "counts letters": "cheat: the longer the program, the more likely it is faulty"}


def page() -> str:
    stored = build.stored(build.ANSWERS)
    answers = stored["answers"]
    faulty = sum(row["faulty"] for row in answers.values())
    return "\n\n".join([
        "# SilentTraps",
        f"SilentTraps is a benchmark for tools and coding agents. It has {len(answers)} cases: "
        f"{faulty} with a fault that raises no error, and {len(answers) - faulty} healthy "
        "cases. The answer to a case is a confidence that there is a fault, one cause and, if "
        "the case shows code, one line. No language model takes part in the scoring.",
        "The material comes from this course: the changes of review mode, and the exam's "
        "script with its probes. The admission rules, the decoys in every program and the "
        "single score for all forms are new.",
        "## Four forms",
        forms(answers),
        "## What is admitted",
        "A candidate becomes a case only if its measurements pass every rule:",
        "\n".join(f"- {name}: {rule}." for name, rule in admit.RULES.items()),
        "The form counts, too: a fault that shows only in its source code is a case in the "
        "form `source` but not in `curves`. The table says how many candidates we tried, and "
        "how many each rule refused as the first broken rule:",
        admitted(stored["tried"]),
        "## How it is scored",
        scoring(),
        "## The table",
        results(json.loads(TABLE.read_text("utf-8"))),
        "`make bench-silent` computes all rows again. The command stores each answer as it "
        "comes, so you can stop the command and start it again.",
        "## Your tool or agent",
        "Copy `benchmarks/silent/adapter.py`, fill in `decide`, and run it from the root of the "
        "course:",
        '```sh\n.venv/bin/python -m benchmarks.silent run "python my_adapter.py"\n```',
        "Each case starts a process in an empty folder. The process reads the case as a line "
        "of JSON and prints its answer as another line, so you can write an adapter in any "
        "language. `run --form diff` asks only the cases of that form. "
        "`.venv/bin/python -m benchmarks.silent causes` lists the causes that can be named.",
        "A part of an answer that cannot be read counts as missing, and the command says what it "
        "got and what it expected. A case without an answer (the adapter ended, took longer than "
        f"{play.SECONDS // 60} minutes, or printed more than {play.MESSAGES} messages) counts as "
        "missing, too. It is asked again at the next run; `--again` asks all cases again.",
        "**Nothing isolates an adapter.** It runs as you, with your files and your network, and "
        "the right answers are in `answers.json` next to the cases. Run an agent in a container "
        "that has no access to this repository, and trust no score of a program that you have not "
        "read.",
        "`benchmarks/silent/DATASHEET.md` says what the cases are made of, what the score "
        "cannot tell, and how to make a private half."]) + "\n"


def forms(answers: dict[str, dict]) -> str:
    """A row for each form: what is shown, and how many cases there are."""
    count = collections.Counter((name.partition("-")[0], row["faulty"])
                                for name, row in answers.items())
    return table(("form", "what is shown", "with a fault", "healthy"), [
        (form, SHOWN[form], str(count[form, True]), str(count[form, False]))
        for form in build.FORMS])


def admitted(tried: dict[str, dict]) -> str:
    names = [*admit.RULES, "not needed", "admitted"]
    return table(("form", *names), [
        (form, *(str(tried.get(form, {}).get(name, 0)) for name in names))
        for form in build.FORMS]) + (
            "\n\nHealthy programs beyond a third of a form are *not needed*.")


def scoring() -> str:
    return "\n".join([
        "- **AUROC** of the confidence: how often a faulty case got a higher confidence than a "
        "healthy case. Guessing gives 0.5, and so does the same answer to every case. The "
        "brackets contain 90 % of the values when the cases are drawn again.",
        "- **Named**: faulty cases whose cause was named, by the id of its trap or in up to "
        f"{score.WORDS} words, which count as the first cause that `dlsys find` reads in them. "
        "An answer with two causes counts as no cause.",
        "- **Placed**: faulty cases whose line was named. An answer with two lines counts as "
        "no line.",
        f"- **Accused**: healthy cases with a confidence above {score.ACCUSED}.",
        "- **Net**: the share of faulty cases that are solved, minus the share of healthy cases "
        f"that are accused. A case is solved by a confidence above {score.ACCUSED}, the right "
        f"cause and the right line; a case whose probes cost more than {score.BUDGET} counts "
        "half. Accusing nothing gives 0, and accusing everything at most 0.",
        "- **Paid**: the mean price of the probes."])


def results(stored: dict[str, Any]) -> str:
    """A row for each tool and form."""
    rows = [(tool, form, *cells(found)) for tool, by_form in stored["rows"].items()
            for form, found in by_form.items()]
    what = "\n".join(f"- *{tool}*: {text}{'' if tool in stored['rows'] else ' (not measured yet)'}."
                     for tool, text in WHAT.items())
    return table(("tool", "form", "AUROC", "named", "placed", "accused", "net", "paid"),
                 rows) + "\n\n" + what


def cells(found: dict[str, Any]) -> list[str]:
    low, high = found["interval"]
    paid = f"{found['paid']:.1f}" if found["paid"] else "-"
    return [f"{found['auroc']:.2f} ({low:.2f} to {high:.2f})",
            *(f"{right} of {of}" if of else "-"
              for right, of in (found["named"], found["placed"], found["accused"])),
            f"{found['net']:+.2f}", paid]


def main() -> None:
    TARGET.write_text(page(), "utf-8")


if __name__ == "__main__":
    main()

"""SilentTraps: score baselines, or an adapter of your own.

    python -m benchmarks.silent                             all baselines, then the table
    python -m benchmarks.silent run "python my_adapter.py"  an adapter; prints its scores
    python -m benchmarks.silent causes                      the causes that can be named

Each answer is saved as soon as it is given, so a stopped run resumes where it was; --again starts
over. The table is benchmarks/silent/table.json, its page RESULTS.md.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.silent import baselines, build, page, play, score
from benchmarks.silent.score import Answer, Score
from dlsys_helpers.errors import UserError

SAID = build.FOLDER / "said"  # answers as they come; not in the repository
TABLE = page.TABLE
Ask = Callable[[dict, dict], Answer]
NO_ANSWER = "no answer"
FIRST = 3  # cases: an adapter that answers none of them does not work
LISTED = 5  # unreadable parts


def file_of(name: str) -> Path:
    return SAID / f"{name.replace(' ', '_')}.jsonl"


def answers(name: str, ask: Ask, cases: dict, held: dict, again: bool = False) -> dict[str, Answer]:
    """The answers of a tool to some cases; it is not asked again for those in its file. A case
    without an answer is not saved there, so the next run asks again.

    Raises UserError if none of the first three cases has an answer.
    """
    SAID.mkdir(exist_ok=True)
    path = file_of(name)
    if again:
        path.unlink(missing_ok=True)
    known = kept(path)
    found = {}
    with path.open("a", encoding="utf-8") as file:
        for place, (case, shown) in enumerate(cases.items(), 1):
            probes = held[case].get("probes", {})
            seen = hashlib.sha256(json.dumps([shown, probes]).encode()).hexdigest()[:12]
            if (case, seen) not in known:
                try:
                    known[case, seen] = ask(shown, probes)
                    print(json.dumps([case, seen, known[case, seen]]), file=file, flush=True)
                except play.NoAnswerError as error:
                    known[case, seen] = Answer(unread=(f"{NO_ANSWER}: {error}",))
            found[case] = known[case, seen]
            if place == FIRST and all(unanswered(one) for one in found.values()):
                raise UserError(f"adapter: none of the first {FIRST} cases has an answer. "
                                f"{case}: {found[case].unread[0]}. Nothing was scored.")
            bar(place, len(cases), name)
    return found


def unanswered(answer: Answer) -> bool:
    return bool(answer.unread) and answer.unread[0].startswith(NO_ANSWER)


def kept(path: Path) -> dict[tuple[str, str], Answer]:
    """The complete lines of a file of answers; a truncated one is asked again."""
    found = {}
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        try:
            case, seen, said = json.loads(line)
            found[case, seen] = Answer(*said[:-1], tuple(said[-1]))
        except ValueError:
            continue
    return found


def version_of(command: str) -> str:
    """A command with the text of each file it names, so a changed adapter is asked again."""
    paths = [Path(word) for word in play.words(command)]
    return "\0".join([command, *(path.read_text("utf-8", "replace") for path in paths
                                 if path.suffix and path.is_file())])


def bar(done: int, of: int, what: str) -> None:
    filled = round(30 * done / of)
    live = sys.stderr.isatty()
    end = "\n" if done == of or not live else "\r"
    if live or done == of or done % 20 == 0:
        print(f"[{'#' * filled}{'.' * (30 - filled)}] {done} of {of}  {what:24}", end=end,
              file=sys.stderr, flush=True)


def scores(said: dict[str, Answer], held: dict) -> dict[str, Score]:
    """The score in each form."""
    forms = dict.fromkeys(held[case].form for case in said)
    return {form: score.score((answer, held[case]) for case, answer in said.items()
                              if held[case].form == form) for form in forms}


def row(found: Score) -> dict:
    """A score as it is recorded."""
    return {name: round(value, 3) if isinstance(value, float) else value
            for name, value in found._asdict().items() if name != "interval"} | {
        "interval": found.interval and [round(edge, 3) for edge in found.interval]}


def lines(name: str, rows: dict[str, dict]) -> list[str]:
    """A tool's rows as text."""
    return [f"{name:24} {form:7} {cells(one)}" for form, one in rows.items()]


def cells(one: dict) -> str:
    share = {name: f"{one[name][0]}/{one[name][1]}" if one[name][1] else "-"
             for name in ("named", "placed", "accused")}
    auroc = f"{'-':20}" if one["auroc"] is None else \
        f"{one['auroc']:.2f} ({one['interval'][0]:.2f} to {one['interval'][1]:.2f})"
    paid = f"{one['paid']:.1f}" if one["paid"] else "-"
    return (f"AUROC {auroc}  named {share['named']:>6}  placed {share['placed']:>6}  "
            f"accused {share['accused']:>6}  net {one['net']:+.2f}  paid {paid:>4}  "
            f"unread {one['unread']}")


def complaints(said: dict[str, Answer]) -> list[str]:
    """What could not be read, the first few cases with the reason; [] if all could."""
    every = [f"{case}: {why}" for case, answer in said.items() for why in answer.unread]
    if not every:
        return []
    none = sum(map(unanswered, said.values()))
    more = [f"... and {len(every) - LISTED} more"] if len(every) > LISTED else []
    return [f"{len(said) - none} of {len(said)} cases have an answer.",
            f"Not read, so counted as missing: {len(every)}.", *every[:LISTED], *more,
            *(["Run the command again to ask for the missing answers."] if none else [])]


TOOLS = baselines.BASELINES | baselines.CHEATS


def measure(again: bool, tools: list[str]) -> dict:
    """The table: baselines and cheats, in the forms in which each can answer. Tools that are not
    asked keep their rows for the same cases.
    """
    cases, held, rest = build.loaded()
    stored = json.loads(TABLE.read_text("utf-8")) if TABLE.exists() else {}
    rows = stored["rows"] if stored.get("cases") == build.digest() else {}
    for name in tools:
        decide = TOOLS[name]
        mine = {case: shown for case, shown in cases.items()
                if shown["form"] in baselines.FORMS.get(name, build.FORMS)}
        said = answers(name, functools.partial(play.in_process, decide), mine, rest, again)
        rows[name] = {form: row(found) for form, found in scores(said, held).items()}
        print(*lines(name, rows[name]), sep="\n")
    return {"cases": build.digest(), "rows": {name: rows[name] for name in TOOLS if name in rows}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="asked")
    own = commands.add_parser("run", help="score an adapter")
    own.add_argument("command", help="such as 'python my_adapter.py'")
    own.add_argument("--form", action="append", choices=build.FORMS, help="only this form")
    commands.add_parser("causes", help="list the causes that can be named")
    for one in (parser, own):
        one.add_argument("--again", action="store_true", help="forget earlier answers")
    parser.add_argument("--tool", action="append", choices=TOOLS, help="only this baseline")
    asked = parser.parse_args()
    if asked.asked == "causes":
        print(*(f"{id}  {fault}" for id, fault in score.causes().items()), sep="\n")
        return
    if asked.asked != "run":
        found = json.loads(json.dumps(measure(asked.again, asked.tool or [*TOOLS])))
        TABLE.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
        page.main()
        return
    cases, held, rest = build.loaded()
    mine = {case: one for case, one in cases.items() if one["form"] in (asked.form or build.FORMS)}
    try:
        name = "own_" + hashlib.sha256(version_of(asked.command).encode()).hexdigest()[:8]
        earlier = 0 if asked.again else len(kept(file_of(name)))
        said = answers(name, functools.partial(play.by_command, asked.command), mine, rest,
                       asked.again)
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    print(*complaints(said), *lines("your adapter", {form: row(found) for form, found in
                                                     scores(said, held).items()}),
          f"The single answers are in {file_of(name).relative_to(build.FOLDER.parent.parent)}.",
          *([f"{earlier} of them are from earlier runs of this command. If your adapter has "
             "changed since, --again asks all cases again."] if earlier else []), sep="\n")
    broken = any(map(unanswered, said.values())) or all(one.unread for one in said.values())
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()

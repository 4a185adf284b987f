"""The tables in book/watch.md, and what `dlsys watch explain` says about each rule.

    .venv/bin/python -m benchmarks.watch_page
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks import watch_corpus, watch_cuda, watch_overhead, watch_tools
from dlsys_helpers import catalog
from dlsys_watch.rules import all_rules
from tools.watch_record import neighbours

sys.path.insert(0, str(watch_corpus.ROOT / "tests" / "watch"))

import faults
import ranks

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "book" / "watch.md"
EXPLANATIONS = ROOT / "src" / "dlsys_watch" / "explanations.json"   # for `explain`, offline
LINES = 2    # pairs of a broken line and its repair to show


def markdown(head: tuple[str, ...], rows: list[tuple]) -> str:
    first, *others = [f"| {' | '.join(line)} |" for line in (head, *rows)]
    return "\n".join([first, "|" + "---|" * len(head), *others])


def link(trap: str) -> str:
    return f"[{trap}](traps/{trap.replace('.', '-')}.md)"


def code(names) -> str:
    return ", ".join(f"`{name}`" for name in names)


def table() -> str:
    """All rules by trap, as Markdown."""
    return markdown(("rule", "trap", "kind", "what it reads"), [
        (f"`{rule.id}`", link(rule.trap), "sound" if rule.sound else "hint", rule.reads)
        for rule in all_rules()])


def explanations() -> dict[str, dict]:
    """What `dlsys watch explain` says about each rule, from its program and the catalog."""
    lines: dict[str, list] = {}
    for path in [*faults.FAULTS, *ranks.RANKS]:
        found = [(line, faults.LINE.match(line)) for line in path.read_text("utf-8").split("\n")]
        pairs = [[shown(line.partition("#")[0]), shown(match["code"])]
                 for line, match in found if match]
        lines.setdefault(faults.rule_of(path).id, pairs[:LINES])
    titles = {trap.id: trap.title for trap in catalog.traps()}
    return {rule.id: {"trap": rule.trap, "title": titles[rule.trap], "sound": rule.sound,
                      "finds": (sys.modules[rule.__module__].__doc__ or "").strip().split("\n")[0],
                      "reads": rule.reads, "lines": lines[rule.id]}
            for rule in all_rules()}


def shown(code: str) -> str:
    """A line of a program; "" for one that does nothing."""
    return "" if code.strip() == "pass" else code.strip()


def costs() -> str:
    """The cost of a step, alone and added by the watch, from the record, as Markdown."""
    record = json.loads(watch_overhead.RECORD.read_text("utf-8"))
    return markdown(("model", "a step alone", "added by the watch", "in percent"), [
        *((name, f"{row['alone_ms']:.1f} ms", f"{row['extra_ms']:.2f} ms", f"{row['percent']} %")
          for name, row in record["sizes"].items()),
        ("start-up, beyond torch", "", f"{record['start_up_s']:.2f} s", "")])


def on_a_gpu() -> str:
    """What a step costs on a GPU and what the watch finds in the corpus there, as Markdown."""
    record = json.loads(watch_cuda.RECORD.read_text("utf-8"))
    where, ran = record["provenance"], record["programs"] - len(record["alone"])
    steps = markdown(("model", "a step alone", "added by the watch"), [
        (name, f"{row['alone_ms']:.1f} ms", f"{row['extra_ms']:.2f} ms")
        for name, row in record["sizes"].items()])
    same = ran - len(record['told otherwise'])
    alike = f"On all {ran}" if same == ran else f"On {same} of them"
    return (f"Wall-clock times on an {where['device']} (torch {where['torch']}, {where['date']}), "
            f"which was also doing other work. Negative values are noise:\n\n{steps}\n\n"
            f"Of the {record['programs']} programs that the corpus held on that day, {ran} run on "
            f"this machine with all their tensors on the GPU. {alike}, the watch reports the same "
            f"findings as on a CPU. In {len(record['computed otherwise'])} of the runs, the "
            f"results differ in some bits when the watch is on "
            f"({code(stem(name) for name in record['computed otherwise'])}); we have not tested "
            f"whether two runs without the watch differ as well.")


def stem(name: str) -> str:
    return name.partition("/")[2]


def foreign(rows: dict[str, dict]) -> dict[str, dict]:
    """The programs whose author had not read the rules."""
    return {name: row for name, row in rows.items() if not watch_corpus.is_own(name)}


def stems(rows: dict[str, dict], verdict: str) -> list[str]:
    return [stem(name) for name, row in rows.items() if row.get("verdict") == verdict]


def recall() -> str:
    """What the watch finds in the corpus, from the record, as Markdown."""
    every = watch_corpus.RECORD.entries()
    rows, own = foreign(every), {name: every[name] for name in every if watch_corpus.is_own(name)}
    counts, faulty = watch_corpus.counts(rows), sum("verdict" in row for row in rows.values())
    healthy, beside = counts["healthy"], watch_corpus.counts(own)
    rebuilt = sum("verdict" in row for row in own.values())
    told = [("found by a sound rule, with the right trap",
             f"{counts[watch_corpus.FOUND]} of {faulty}", ""),
            ("found only by a hint", f"{counts[watch_corpus.HINT]} of {faulty}",
             code(stems(rows, watch_corpus.HINT))),
            ("reported as a different trap", f"{counts[watch_corpus.OTHERWISE]} of {faulty}",
             code(stems(rows, watch_corpus.OTHERWISE))),
            ("missed", f"{counts[watch_corpus.MISSED]} of {faulty}",
             code(stems(rows, watch_corpus.MISSED))),
            ("healthy programs with a false alarm", f"{counts['false alarm']} of {healthy}", ""),
            ("healthy programs with a false hint", f"{counts['false hint']} of {healthy}", ""),
            ("programs that computed something different",
             f"{sum(not row['same'] for row in rows.values())} of {len(rows)}", ""),
            ("rebuilt together with their rules, found",
             f"{beside[watch_corpus.FOUND]} of {rebuilt}", ""),
            ("rebuilt together with their rules, found only by a hint",
             f"{beside[watch_corpus.HINT]} of {rebuilt}", ""),
            ("rebuilt together with their rules, missed",
             f"{beside[watch_corpus.MISSED]} of {rebuilt}",
             code(stems(own, watch_corpus.MISSED))),
            ("healthy, written with rules, with a false alarm or hint",
             f"{beside['false alarm'] + beside['false hint']} of {beside['healthy']}", "")]
    return markdown(("", "programs", "which"), told)


def others() -> str:
    """Other tools on the same corpus, from the record, as Markdown."""
    record = json.loads(watch_tools.RECORD.read_text("utf-8"))
    rows = foreign(watch_corpus.RECORD.entries())
    counts = watch_corpus.counts(rows)
    faulty = sum("verdict" in row for row in rows.values())
    right = {stem(name) for name, row in rows.items()
             if row.get("verdict") in (watch_corpus.FOUND, watch_corpus.HINT)}
    found = [("`dlsys watch --hints`", f"{len(right)} of {faulty}", "",
              f"{counts['false alarm'] + counts['false hint']} of {counts['healthy']}", "none")]
    for tool, row in record["tools"].items():
        ahead = [name for name in row["found"] if name not in right]
        found.append((f"{tool} {row['version']}", f"{len(row['found'])} of {row['faulty']}",
                      code(ahead), f"{len(row['alarms'])} of {row['healthy']}",
                      f"{row['advice']} of {row['healthy']}"))
    found += [(f"{tool}: {why}", "not measured", "", "", "")
              for tool, why in record["not_measured"].items()]
    return markdown(("tool", "faults found", "found by it and missed by the watch",
                     "healthy programs with a false alarm",
                     "healthy programs with advice only"), found)


def wild() -> str:
    """The faults that no trap teaches, with their rules or the reason for none, as Markdown."""
    return markdown(("fault", "nearest trap", "rule"), [
        (row["fault"], link(row["beside"]),
         code(row["rules"]) if "rules" in row else f"none: {row['why']}") for row in neighbours()])


TABLES = {"rules": table, "costs": costs, "on a GPU": on_a_gpu, "recall": recall, "others": others,
          "wild": wild}


def main() -> None:
    text = PAGE.read_text("utf-8")
    for name, made in TABLES.items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{made()}\n{end}{rest.partition(end)[2]}"
    PAGE.write_text(text, "utf-8")
    EXPLANATIONS.write_text(json.dumps(explanations(), indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()

"""The tables in book/watch.md: the rules, and what the watch was measured to cost.

    .venv/bin/python -m benchmarks.watch_page
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from benchmarks import watch_overhead
from dlsys_watch.rules import all_rules

PAGE = Path(__file__).resolve().parents[1] / "book" / "watch.md"


def table() -> str:
    """All rules by trap, as Markdown."""
    rows = [f"| `{rule.id}` | [{rule.trap}](traps/{rule.trap.replace('.', '-')}.md) | "
            f"{'sound' if rule.sound else 'hint'} | {rule.reads} |" for rule in all_rules()]
    return "\n".join(["| rule | trap | kind | what it reads |", "|---|---|---|---|", *rows])


def costs() -> str:
    """What a step costs alone and how much more under the watch, from the record, as Markdown."""
    record = json.loads(watch_overhead.RECORD.read_text("utf-8"))
    rows = [f"| {name} | {row['alone_ms']:.1f} ms | {row['extra_ms']:.2f} ms "
            f"| {row['percent']} % |" for name, row in record["sizes"].items()]
    return "\n".join(["| model | a step alone | more under the watch | share |",
                      "|---|---|---|---|", *rows])


def main() -> None:
    text = PAGE.read_text("utf-8")
    for name, made in (("rules", table()), ("costs", costs())):
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        text = re.sub(f"{begin}.*?{end}", lambda _, t=f"{begin}\n{made}\n{end}": t, text,
                      flags=re.DOTALL)
    PAGE.write_text(text, "utf-8")


if __name__ == "__main__":
    main()

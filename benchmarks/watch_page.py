"""The table of rules in book/watch.md, made from the rules.

    .venv/bin/python -m benchmarks.watch_page
"""

from __future__ import annotations

import re
from pathlib import Path

from dlsys_watch.rules import all_rules

PAGE = Path(__file__).resolve().parents[1] / "book" / "watch.md"
BEGIN, END = "<!-- rules -->", "<!-- end of rules -->"


def table() -> str:
    """All rules by trap, as Markdown."""
    rows = [f"| `{rule.id}` | [{rule.trap}](traps/{rule.trap.replace('.', '-')}.md) | "
            f"{'sound' if rule.sound else 'hint'} | {rule.reads} |" for rule in all_rules()]
    return "\n".join(["| rule | trap | kind | what it reads |", "|---|---|---|---|", *rows])


def main() -> None:
    text = PAGE.read_text("utf-8")
    made = f"{BEGIN}\n{table()}\n{END}"
    PAGE.write_text(re.sub(f"{BEGIN}.*?{END}", lambda _: made, text, flags=re.DOTALL), "utf-8")


if __name__ == "__main__":
    main()

"""Quiet cards: HTML for a notebook, plain text for a terminal. Every text is escaped."""

from __future__ import annotations

import html
import os
import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dlsys_helpers import catalog, paths
from dlsys_helpers.catalog import Trap
from dlsys_helpers.verdicts import STATUSES, Verdict


def shell() -> Any:
    """The IPython that runs this code, or None."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


def watched() -> bool:
    """Whether a person is probably watching this cell's output.

    JupyterLab and editors allow requests for input (`allow_stdin`); nbval and papermill do not.
    """
    kernel = getattr(shell(), "kernel", None)
    request = kernel.get_parent() if kernel else {}
    return bool(request.get("content", {}).get("allow_stdin"))


def emit(html_text: str, text: str, facts: dict[str, Any] | None = None, **options: Any) -> None:
    """Show HTML where a notebook listens, else print the text.

    facts: output metadata for code that reads the notebook later. options: for IPython's display.
    """
    if shell() is not None:
        from IPython.display import display
        display({"text/html": html_text, "text/plain": text}, metadata=facts, raw=True, **options)
    else:
        print(text)


def card(tone: str, head: str, body: str) -> str:
    """An HTML card in one tone; `head` is text, `body` is HTML."""
    return (f'<div role="status" class="dlsys-card" style="border-left:4px solid {tone};'
            f'background:color-mix(in srgb,{tone} 9%,transparent);padding:.6em 1em;'
            f'border-radius:0 8px 8px 0;max-width:46rem;color:inherit">'
            f"<strong>{html.escape(head)}</strong>{body}</div>")


_EMPHASIS = re.compile(r"(?<![\w*])\*(?![\s*])([^*]+)(?<!\s)\*(?![\w*])")


def inline(text: str) -> str:
    """Markdown's code spans and emphasis as HTML: inside raw HTML nothing else renders them."""
    parts = re.split(r"`([^`]+)`", html.escape(text, quote=False))
    parts[::2] = [_EMPHASIS.sub(r"<em>\1</em>", words) for words in parts[::2]]
    parts[1::2] = [f"<code>{code}</code>" for code in parts[1::2]]
    return "".join(parts)


def link(path: Path, words: str, fragment: str = "") -> str:
    """A link relative to the kernel's working folder, which is the notebook's folder."""
    try:
        target = quote(Path(os.path.relpath(path)).as_posix())
    except ValueError:  # on Windows, if they are on different drives
        target = path.resolve().as_uri()
    return f'<a href="{target}{fragment}">{html.escape(words)}</a>'


def hint_html(hints: list[str]) -> str:
    """Hints as folded steps; each gives more than the one before."""
    steps = (f'<details style="margin-top:.3em"><summary style="cursor:pointer">Hint {n}</summary>'
             f'<div style="margin:.2em 0 0 1em">{inline(hint)}</div></details>'
             for n, hint in enumerate(hints, 1))
    return "".join(steps)


def show_verdict(verdict: Verdict, trap: Trap, case: str = "") -> None:
    """Show the verdict on an exercise; `trap` is its entry in the catalog, `case` where it failed.
    """
    passed = f"{trap.points} of {trap.points} points."
    if paths.SOLUTIONS.exists() and trap in catalog.traps():  # neither in a wheel nor in an exam
        passed += f" The worked answer beside yours: dlsys answer {trap.id}"
    text = passed if verdict.status == "pass" else verdict.message
    body = "" if verdict.status in ("pass", "todo") else hint_html(trap.hints)
    see = verdict.see({entry.id: entry.name for entry in catalog.traps()}.get(verdict.trap))
    where = case and f"The case: {case}"
    shown = "".join(f'<p style="margin:.3em 0">{part}</p>'
                    for part in (html.escape(text), _linked(see, verdict.trap),
                                 html.escape(where)) if part)
    first_hint = f"\n  Hint: {trap.hints[0]}" if body and trap.hints else ""
    emit(card(STATUSES[verdict.status].tone, verdict.head(), shown + body),
         f"{verdict.head()}. {text} {see}".rstrip() + (where and f"\n  {where}") + first_hint,
         verdict.facts())


def _linked(see: str, trap: str) -> str:
    """Where to read on, as a link to the trap in the learner's lesson if there is one."""
    lesson = paths.lesson_copy(int(trap[:2])) if trap else None
    if lesson is None or not lesson.exists():
        return html.escape(see)
    return link(lesson, see, f"#cell-id={trap.replace('.', '-')}-situation-1")


def show_claim(text: str) -> None:
    """Show one quiet line that says a claim of the lesson holds."""
    passed = STATUSES["pass"]
    tick = f'<span style="color:{passed.tone}" aria-hidden="true">{passed.mark}</span>'
    emit(f'<div class="dlsys-claim" style="font-size:.86em;opacity:.85">{tick} '
         f"{html.escape(text)}</div>", f"holds: {text}")

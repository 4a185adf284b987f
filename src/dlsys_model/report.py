"""The report: one page, `my-work/your_model.html`, of what was built, measured and guessed."""

from __future__ import annotations

import html
from datetime import UTC, datetime
from pathlib import Path

from dlsys_helpers import guesses, progress
from dlsys_model.errors import ModelError
from dlsys_model.part_table import CATALOGUE, OURS, PLACES, Part
from dlsys_model.parts import Parts

FILE = "your_model.html"


class ReportError(ModelError):
    """The report cannot be written. The message says what to do."""


def path() -> Path | None:
    """Where the report is, next to the progress file; None when ``DLSYS_PROGRESS=off``."""
    store = progress.store()
    return store.with_name(FILE) if store else None


def write(parts: Parts, log: list[dict], sample: str, sizes: dict[str, tuple[int, float]]) -> str:
    """Write the page again; returns a line that says where it is. Raises ReportError.

    log: entries of a training. sizes: bytes and loss in nats of each model, by its name. Guesses
    and measurements come from this session and from the learner's file.
    """
    page = _PAGE.format(date=datetime.now(UTC).date().isoformat(), parts=_parts(parts),
                        mine=len(parts.mine), all=len(CATALOGUE), curve=_curve(log),
                        loss=f"{log[-1]['valid']:.3f}", steps=log[-1]["step"],
                        sample=html.escape(sample), sizes=_sizes(sizes), guesses=_guesses())
    where = path()
    if where is None:
        return "No report is kept: DLSYS_PROGRESS is off."
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_text(page, "utf-8")
    except OSError as error:
        raise ReportError(f"{FILE}: cannot be written ({error.strerror}). Free some space, or "
                          "make the folder writable; all that was measured is in memory.") from None
    return f"Your report: {where.parent.name}/{FILE}"


def _parts(parts: Parts) -> str:
    return "".join(f"<tr><th colspan=3>{place.capitalize()}</th></tr>"
                   + "".join(_part(part, parts) for part in CATALOGUE if part.place == place)
                   for place in PLACES)


def _part(part: Part, parts: Parts) -> str:
    other = "lines of ours" if part.standin == OURS else f"<code>{html.escape(part.standin)}</code>"
    whose = "✓ mine" if part.id in parts.mine else other
    return (f"<tr><td>{part.id}</td><td><code>{part.function}</code></td><td>{whose}</td></tr>")


def _curve(log: list[dict]) -> str:
    """Loss in training (solid) and in validation (dashed) as an SVG."""
    last, top = log[-1]["step"], max(max(row["loss"], row["valid"]) for row in log)

    def line(name: str, dash: str) -> str:
        points = " ".join(f"{40 + 540 * row['step'] / last:.1f},{190 - 170 * row[name] / top:.1f}"
                          for row in log)
        return (f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="2"'
                f' stroke-dasharray="{dash}"/>')
    return (f'<svg viewBox="0 0 600 220" role="img" aria-label="Loss over {last} steps, solid in '
            f'training, dashed in validation"><path d="M40 20V190H580" fill="none" '
            f'stroke="currentColor"/>{line("loss", "")}{line("valid", "6 4")}'
            f'<text x="36" y="26" text-anchor="end">{top:.1f}</text>'
            f'<text x="36" y="190" text-anchor="end">0</text>'
            f'<text x="580" y="208" text-anchor="end">step {last}</text></svg>')


def _sizes(sizes: dict[str, tuple[int, float]]) -> str:
    return "".join(f"<tr><td>{html.escape(name)}</td><td>{size / 1000:,.0f} kB</td>"
                   f"<td>{loss:.3f}</td></tr>" for name, (size, loss) in sizes.items())


def _guesses() -> str:
    """A row for each question of the notebook that was measured in this session."""
    return "".join(f"<tr><td>{html.escape(one.question.replace('`', ''))}</td>"
                   f"<td>{html.escape(one.guess or 'no guess')}</td>"
                   f"<td>{html.escape(one.measured)}</td></tr>"
                   for one in guesses.measured_questions("model."))


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>My model</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 44rem; margin: 2rem auto;
  padding: 0 1rem; color-scheme: light dark; }}
table {{ border-collapse: collapse; width: 100%; }}
td, th {{ text-align: left; padding: .15rem .6rem .15rem 0; vertical-align: top;
  border-bottom: 1px solid #8884; overflow-wrap: anywhere; }}
pre {{ white-space: pre-wrap; border-left: 3px solid; padding-left: .8rem; }}
svg {{ width: 100%; font-size: 12px; fill: currentColor; }}
th, .parts td:not(:last-child) {{ white-space: nowrap; }}
.parts {{ columns: 20rem 2; font-size: .8em; }}
@media print {{
  @page {{ size: A4; margin: 12mm; }}
  body {{ margin: 0; padding: 0; max-width: none; font-size: 9px; line-height: 1.25; }}
  h1, h2 {{ margin: .5em 0 .2em; break-after: avoid; }}
  svg {{ width: 50%; }}
  td, th {{ padding-block: 0; }}
  .parts {{ columns: 3; font-size: .75em; }}
}}
</style>
<h1>My model</h1>
<p>{mine} of {all} parts are my own answers. Trained for {steps} steps; validation loss {loss} nats
per letter. {date}.</p>
<h2>The loss</h2>
{curve}
<h2>What it writes</h2>
<pre>{sample}</pre>
<h2>Smaller</h2>
<table><tr><th>model</th><th>stored</th><th>loss, nats per letter</th></tr>{sizes}</table>
<h2>Guessed and measured</h2>
<table><tr><th>question</th><th>guessed</th><th>measured</th></tr>{guesses}</table>
<h2>Parts</h2>
<div class="parts"><table>{parts}</table></div>
</html>
"""

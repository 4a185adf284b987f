"""The page "Six incidents", as Markdown, and the data that its script reads.

The page needs no kernel and no network. Probe results, the list of causes and the debrief are
packed, so that neither a search in the page nor a glance at its source gives the cause away.
book/assets/incidents/incidents.js follows the rules of dlsys_incidents/searches.py.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from dlsys_incidents import incident_files, searches
from dlsys_incidents.incident_files import BUDGET, DAYS, DOLLARS, Curve, Incident
from tools import book_pages

TITLE = "Search an incident"
NEEDS_SCRIPT = ("This part of the page is a program in JavaScript. Without it, search the same "
                "incidents in a terminal: dlsys incident")


def page() -> str:
    return "\n\n".join([
        f"# {TITLE}",
        "At work, a fault has no number and no heading. Somebody shows you a curve on Monday "
        "morning, the chat is full of opinions, and every look costs machine time. Here are "
        "six incidents, each of which would take a week at work. What you see is true, but it "
        "is not "
        "enough.",
        f"You have {BUDGET} GPU hours, {BUDGET * DOLLARS:.0f} dollars at {DOLLARS:.2f} an hour. "
        "Choose a probe, and before you see the result, write down what you believe and what "
        "you expect. Several explanations stay plausible for a while, and some probes lead "
        "nowhere. "
        "When you are sure, name the cause; after that you cannot run any more probes. Then "
        "you see an expert's search next to yours, each with its price. A separate page explains "
        "[how to search](method.md).",
        book_pages.raw(
            '<link rel="stylesheet" href="diffs/diffs.css">\n'
            '<link rel="stylesheet" href="incidents/incidents.css">\n'
            f'<div class="diffs incidents" id="incidents"><p>{NEEDS_SCRIPT}</p></div>\n'
            '<script defer src="incidents/data.js"></script>\n'
            '<script defer src="site/form.js"></script>\n'
            '<script defer src="incidents/incidents.js"></script>'),
        "## How it is scored",
        "A wrong cause earns nothing. The right cause earns "
        f"{searches.GUESSED} of {searches.POINTS} points, because it could be a guess. The "
        "remaining "
        "points are for evidence: half of these points if one of your probes shows the cause "
        "itself, and half for ruling out the other causes, in proportion to how many your "
        "probes rule out. You "
        "keep all points if you spend no more than the expert did. Beyond that, the points "
        "shrink; half of them are left once you have spent twice as much as the expert. Once a "
        "probe has shown the cause, a further probe that also shows the cause costs no points. "
        "If you buy every probe, you end with at most half of the points. A cause counts as "
        "found once you "
        "have half of the evidence.",
        "## What is real, and what is not",
        "Every number in a curve or a probe was measured: each fault was planted in a small "
        "program that trains or serves for a few seconds on a CPU, and a probe shows what that "
        "program measured. With each of five seeds the symptom appears with the fault and "
        "disappears with the repair. `make incidents` records all runs again. The company, the "
        "chat, the cluster size and the prices are invented. What went wrong is real: each "
        "incident is based on public reports, listed at its end.",
        "You first name the cause in your own words and then choose from a list, which appears "
        "only when no probe can follow. A program that judged your words might not know your "
        "wording, and a list that you saw earlier would do the search for you. The page keeps "
        "your sentences and shows them to you again, but nobody judges them.",
        "`dlsys incident` does the same in a terminal and keeps your search in "
        "`my-work/.incidents.jsonl`; on this page your search stays in your browser. You can "
        "stop and continue later. The answers are packed in a file next to this page, so that "
        "you do not read them by accident, but they are no secret: anybody can unpack "
        "them."]) + "\n"


def script() -> str:
    """The data that the page's script reads."""
    found = {"budget": BUDGET, "dollars": DOLLARS, "days": DAYS, "letters": searches.LETTERS,
             "most": searches.MOST, "points": searches.POINTS, "guessed": searches.GUESSED,
             "enough": searches.ENOUGH, "dear": searches.DEAR,
             "incidents": [shown(one) for one in incident_files.incidents().values()]}
    return f"window.dlsysIncidents = {json.dumps(found, separators=(',', ':'))};\n"


def shown(incident: Incident) -> dict:
    """An incident as the script needs it: what readers may see, and the rest packed."""
    return {"id": incident.id, "digest": incident.digest, "number": incident.number,
            "title": incident.title, "situation": incident.situation, "chat": incident.chat,
            "bill": incident.bill, "curves": [*map(drawn, incident.curves)],
            "probes": [{"id": one.id, "does": one.does, "hours": one.hours,
                        "packed": packed({"shows": one.shows,
                                          "curves": [*map(drawn, one.curves)]})}
                       for one in incident.probes],
            "packed": packed({
                "right": incident.causes[0].id, "why": incident.why, "repair": incident.repair,
                "causes": [cause._asdict() for cause in incident.listed],
                "expert": [step._asdict() for step in incident.expert],
                "sources": [source._asdict() for source in incident.sources]})}


def drawn(curve: Curve) -> dict:
    return curve._asdict()


def packed(what: Any) -> str:
    """The text, packed so that you cannot read it by accident."""
    return base64.b64encode(json.dumps(what).encode()).decode()

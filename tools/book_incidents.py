"""The page "Six incidents", as Markdown, and the data that its script reads.

The page asks neither a kernel nor a network. What a probe shows, the list of causes and the debrief
are packed, so that neither a search in the page nor a glance at its source tells the cause.
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
        "morning, the chat is full of opinions, and every look costs machine time. Here are six "
        "incidents of this kind, each a week at work. What you see is true, and it is not enough.",
        f"You have {BUDGET} GPU hours, {BUDGET * DOLLARS:.0f} dollars at {DOLLARS:.2f} an hour. "
        "Choose a probe, and before you see its answer, write down what you believe and what you "
        "expect. Several explanations stay alive for a while, and some probes lead nowhere. When "
        "you are sure, name the cause; no probe follows after that. Then you see an expert's "
        "search next to yours, with the price of both. "
        "[How to search](method.md) is on a page of its own.",
        book_pages.raw(
            '<link rel="stylesheet" href="diffs/diffs.css">\n'
            '<link rel="stylesheet" href="incidents/incidents.css">\n'
            f'<div class="diffs incidents" id="incidents"><p>{NEEDS_SCRIPT}</p></div>\n'
            '<script defer src="incidents/data.js"></script>\n'
            '<script defer src="incidents/incidents.js"></script>'),
        "## What is real, and what is not",
        "Every number in a curve or a probe was measured: each fault was planted in a small "
        "program that trains or serves for a few seconds on a CPU, and what a probe shows is what "
        "that program gave. With five seeds the symptom is there with the fault and gone with the "
        "repair, and `make incidents` records them again. The company, the chat, the size of the "
        "cluster and the prices are invented. What went wrong is not: each incident rests on "
        "public reports, which the debrief names.",
        "You name the cause in your own words first and then choose in a list, which is shown only "
        "when no probe can follow. Words alone would be judged by a program that "
        "may not know your way to say it, and a list that you saw earlier would do the search for "
        "you. Your sentences are kept and shown to you again, and nobody judges them.",
        "`dlsys incident` does the same in a terminal and keeps your search in "
        "`my-work/.incidents.jsonl`; on this page it stays in your browser. You may stop and go on "
        "later. The answers are packed in a file next to this page. That keeps you from reading "
        "them by accident, and it is no secret: whoever wants to unpack it can."]) + "\n"


def script() -> str:
    """The data of the page's script."""
    found = {"budget": BUDGET, "dollars": DOLLARS, "days": DAYS, "letters": searches.LETTERS,
             "most": searches.MOST,
             "incidents": [shown(one) for one in incident_files.incidents().values()]}
    return f"window.dlsysIncidents = {json.dumps(found, separators=(',', ':'))};\n"


def shown(incident: Incident) -> dict:
    """An incident as its script needs it: what is free to see, and the rest packed."""
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
    """Text that nobody reads by accident."""
    return base64.b64encode(json.dumps(what).encode()).decode()

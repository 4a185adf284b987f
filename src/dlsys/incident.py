"""`dlsys incident`: search for the cause of one of six incidents, with a budget of GPU hours.

You see what a colleague would show you on Monday, and then ask for probes. Each costs GPU hours and
needs a hypothesis in your own words first. When you name the cause, you get points for it and for
your evidence, and an expert's search is shown next to yours. Everything is kept in
``my-work/.incidents.jsonl`` as you give it, so that you can continue an interrupted search, in this
terminal or another one.
"""

import argparse
import secrets
from datetime import UTC, datetime

from dlsys.terminal import ask, bold, filled, new_table, paragraph, say, styled
from dlsys_helpers.errors import UserError
from dlsys_helpers.json_lines import Store
from dlsys_incidents import searches
from dlsys_incidents.incident_files import (
    BUDGET,
    DOLLARS,
    Curve,
    Incident,
    gpu_hours,
    incidents,
)
from dlsys_incidents.searches import AGAIN, CAUSE, POINTS, PROBE, WORDS, AnswerError, Search

INTERRUPTED = 130
SHOWN = 12  # points of a curve, as it is printed
STORE = Store(".incidents.jsonl", "Your search", searches.whole)


class Log:
    """The events of all searches: those on disk, and those of this process that are not there."""

    def __init__(self) -> None:
        self.mine: list[dict] = []

    def search(self, incident: Incident) -> Search:
        stored = STORE.entries()
        keys = {event["key"] for event in stored}
        return searches.search_of(incident, [
            *stored, *(event for event in self.mine if event["key"] not in keys)])

    def add(self, incident: Incident, what: str, name: str = "", words: str = "") -> str:
        """Keep an event; returns its key."""
        event = {"id": incident.id, "digest": incident.digest, "what": what, "name": name,
                 "words": words, "key": secrets.token_hex(8),
                 "time": datetime.now(UTC).isoformat(timespec="seconds")}
        STORE.append(event)
        self.mine.append(event)
        return event["key"]


def add_parser(commands) -> None:
    """Add `incident` to the commands of `dlsys`."""
    parser = commands.add_parser("incident", help="find the cause of an incident with probes that "
                                                  "cost GPU hours")
    parser.add_argument("incident", nargs="?", help="the number of an incident (default: the one "
                                                    "you have begun, or the next one)")
    parser.add_argument("--list", action="store_true", help="list all incidents, and how far you "
                                                            "have got")
    parser.add_argument("--again", action="store_true", help="begin a search again; the old one "
                                                             "stays in the file")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    log = Log()
    if args.list:
        return show_list(log)
    incident = incident_of(args.incident) if args.incident else upcoming(log)
    if incident is None:
        print("You have searched all incidents. To see one again: dlsys incident 1. To search it "
              "again from the beginning: dlsys incident 1 --again")
        return 0
    if args.again:
        log.add(incident, AGAIN)
    try:
        play(incident, log)
    except (KeyboardInterrupt, EOFError) as stop:
        print(f"\nStopped. To go on: dlsys incident {incident.number}" if STORE.path() else
              "\nStopped. Nothing is kept, because DLSYS_PROGRESS is off.")
        return INTERRUPTED if isinstance(stop, KeyboardInterrupt) else 0
    return 0


def incident_of(text: str) -> Incident:
    """The incident with this number."""
    every = [*incidents().values()]
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:4]) <= len(every)):
        raise UserError(f"incident: got {text[:40]!r}, expected the number of an incident, 1 to "
                        f"{len(every)}. See: dlsys incident --list")
    return every[int(text[:4]) - 1]


def upcoming(log: Log) -> Incident | None:
    """The incident that was begun, or else the next one; None if all are done."""
    left = [search for search in map(log.search, incidents().values()) if not search.named]
    begun = [search for search in left if search.begun]
    return next((search.incident for search in (*begun, *left)), None)


# ---- one incident

def play(incident: Incident, log: Log) -> None:
    """Show an incident and answer probes until its cause is named; then compare the searches."""
    search = log.search(incident)
    if not search.named:
        show_incident(incident)
        if search.begun:
            paragraph("You have begun this search. What you know so far:")
            show_looks(search)
        else:
            explain()
        search_on(incident, log)
    debrief(log.search(incident))


def explain() -> None:
    paragraph(f"You have {BUDGET} GPU hours, {BUDGET * DOLLARS:.0f} dollars at {DOLLARS:.2f} an "
              "hour, and a week. Before each probe you write down what you believe and what you "
              "therefore expect to see; you will read it again at the end. `log` shows your search "
              "so far, `probes` the list of probes, `name` ends the search with a cause, and `q` "
              "stops for today. Some probes lead nowhere. The numbers were measured on a small "
              "program, in which a day takes seconds; company, cluster and prices are invented.")
    paragraph(f"The right cause alone earns {searches.GUESSED} of {POINTS} points, because it may "
              "be a guess. The rest are for evidence: half of them for a probe that shows the "
              "cause, half for the other causes that your probes rule out. You keep all points if "
              "you spend no more than an expert did, and half of them if you spend twice as much. "
              "Once a probe has shown the cause, a further probe that also shows it costs no "
              "points.")


def search_on(incident: Incident, log: Log) -> None:
    if not log.search(incident).words:
        show_probes(log.search(incident))
    while not (search := log.search(incident)).named:
        if search.words:
            return choose_cause(incident, log)
        if not search.affordable:
            paragraph("The budget does not cover any probe that you have not run. Name the cause.")
            return name_cause(incident, log)
        said = input(f"\n{search.day}, {gpu_hours(search.left)} left. probe > ").strip().lower()
        if said in ("q", "quit"):
            raise EOFError
        if said in ("probes", "probe", "list", "?", "help"):
            show_probes(search)
        elif said == "log":
            show_looks(search)
        elif said in ("name", "cause"):
            return name_cause(incident, log)
        else:
            try:
                probe(incident, searches.probe_of(said, incident), log)
            except AnswerError as error:
                paragraph(str(error))
    paragraph("The cause was named in another terminal.")


def probe(incident: Incident, name: str, log: Log) -> None:
    """Ask for a hypothesis, pay, and show what the probe shows."""
    search, asked = log.search(incident), incident.probe(name)
    if name in search.made:
        paragraph("You have already run this probe; looking again is free.")
        show_answer(incident, name)
        return
    refuse_dear(search, name)
    paragraph(f"{asked.does} {gpu_hours(asked.hours)}. What do you believe, and what do you "
              "expect to see? An empty line goes back.")
    said = input("hypothesis > ")
    if not said.strip():
        paragraph("hypothesis: got nothing, expected a sentence. Nothing was paid.")
        return
    key = log.add(incident, PROBE, name, searches.sentence(said, "hypothesis"))
    after = log.search(incident)
    if key not in {look.key for look in after.looks} and name not in {
            look.probe for look in after.looks}:
        raise AnswerError("probe: another terminal was faster, so the budget no longer pays for "
                          "this probe, or the cause is already named. Nothing was paid.")
    show_answer(incident, name)


def refuse_dear(search: Search, name: str) -> None:
    hours = search.incident.probe(name).hours
    if hours > search.left:
        raise AnswerError(f"probe: {name} costs {gpu_hours(hours)}, and you have {search.left}. "
                          "Choose a cheaper one, or `name` the cause.")


def name_cause(incident: Incident, log: Log) -> None:
    """Ask for the cause in the learner's own words; after that, show the list and end probing."""
    may_go_back = log.search(incident).affordable
    say("")
    paragraph("Name the cause in your own words first. Then you choose from a list, and you "
              "cannot run any more probes."
              f"{' An empty line goes back.' if may_go_back else ''}")
    while True:
        said = input("cause > ")
        if not said.strip() and may_go_back:
            return search_on(incident, log)
        try:
            log.add(incident, WORDS, words=searches.sentence(said, "cause"))
            return search_on(incident, log)
        except AnswerError as error:
            paragraph(str(error))


def choose_cause(incident: Incident, log: Log) -> None:
    """Ask which cause of the list is meant."""
    paragraph(f"The cause in your words: {log.search(incident).words}")
    for place, cause in enumerate(incident.listed, 1):
        say(filled(cause.says, f"  {place}  ", "     "))
    log.add(incident, CAUSE, ask("Which of these comes closest to what you mean?",
                                 lambda text: searches.cause_of(text, incident), AnswerError))


# ---- what is shown

def show_incident(incident: Incident) -> None:
    say("")
    say(bold(f"Incident {incident.number}: {incident.title}"))
    for text in incident.situation:
        paragraph(text)
    show_curves(incident.curves)
    say("")
    for who, says in incident.chat:
        say(styled(f"{who}:", "bold"), filled(f"{who}: {says}", "", "  ")[len(who) + 2:])
    say("")
    paragraph(f"The bill: {incident.bill}")
    say("")


def show_probes(search: Search) -> None:
    made = search.made
    table = new_table("", "probe", "what it does", "GPU hours", "")
    for place, one in enumerate(search.incident.probes, 1):
        table.add_row(str(place), one.id, one.does, str(one.hours),
                      "run" if one.id in made else "")
    say(table)


def show_looks(search: Search) -> None:
    for look in search.looks:
        say("")
        paragraph(search.incident.probe(look.probe).does)
        paragraph(f"You believed: {look.hypothesis}")
        show_answer(search.incident, look.probe)
    if not search.looks:
        paragraph("You have not run any probe yet.")


def show_answer(incident: Incident, name: str) -> None:
    found = incident.probe(name)
    say("")
    if "\n" in found.shows:
        say(found.shows)
    else:
        paragraph(found.shows)
    show_curves(found.curves)


def show_curves(curves: tuple[Curve, ...]) -> None:
    for curve in curves:
        say("")
        say(styled(curve.title, "bold"))
        step = max(1, (len(curve.x) - 1) // (SHOWN - 1))
        rows = {curve.axis: curve.x, **curve.lines}
        width = max(map(len, rows))
        for name, values in rows.items():
            shown = values[::step]
            say(f"  {name:<{width}} " + " ".join(f"{value:>6.4g}" for value in shown))


def debrief(search: Search) -> None:
    """What the cause was, and both searches, probe by probe."""
    incident, right = search.incident, search.incident.causes[0]
    say("")
    say(bold(f"Incident {incident.number}: {incident.title}"))
    say(verdict(search))
    paragraph(f"The cause: {right.says}")
    paragraph(f"In your words: {search.words}")
    paragraph(scored(search))
    if not search.right:
        named = incident.cause(search.named)
        paragraph(f"You chose: {named.says} {ruled_out(search, named.probe)} {named.against}")
    paragraph(incident.why)
    paragraph(f"Repair: {incident.repair}")
    show_own_search(search)
    show_expert_search(incident)
    say("")
    say(bold("Read for this incident"))
    for source in incident.sources:
        paragraph(f"- {source.title}. {source.says}\n  {source.address}")
    print("To search this incident again from the beginning: "
          f"dlsys incident {incident.number} --again")


def show_own_search(search: Search) -> None:
    incident = search.incident
    say("")
    say(bold(f"Your search: {gpu_hours(search.spent)}, {search.spent * DOLLARS:.0f} dollars"))
    for place, look in enumerate(search.looks, 1):
        found = incident.probe(look.probe)
        paragraph(f"{place}. {found.does} {gpu_hours(found.hours)}.")
        paragraph(f"   You believed: {look.hypothesis}")
        for cause in incident.causes:
            if look.probe in cause.shown_by:
                paragraph(f"   It shows the cause: {cause.says}")
            if look.probe in cause.ruled_out_by:
                paragraph(f"   It rules out: {cause.says}")
    if not search.looks:
        paragraph("You did not run any probe.")


def show_expert_search(incident: Incident) -> None:
    say("")
    say(bold(f"An expert's search: {gpu_hours(incident.expert_hours)}, "
             f"{incident.expert_hours * DOLLARS:.0f} dollars"))
    for place, step in enumerate(incident.expert, 1):
        found = incident.probe(step.probe)
        paragraph(f"{place}. {found.does} {gpu_hours(found.hours)}.")
        paragraph(f"   The expert's hypothesis: {step.believes}")
        paragraph(f"   What is left: {step.left}")


def verdict(search: Search):
    if not search.right:
        return styled("✗ That was not it.", "red")
    return styled("✓ You found it." if search.found else
                  "✓ That is the cause, but your probes hardly show it.", "green")


def scored(search: Search) -> str:
    """The points and what they are for."""
    if not search.right:
        return f"0 of {POINTS} points."
    others = len(search.incident.causes) - 1
    shows = "One of your probes shows" if search.shown else "None of your probes shows"
    dear = ("" if search.price == 1 else f" You spent more than the expert, so {search.price:.0%} "
            "of the points remain.")
    return (f"{search.points} of {POINTS} points. {shows} the cause itself, and your probes rule "
            f"out {len(search.excluded)} of the {others} others.{dear}")


def ruled_out(search: Search, name: str) -> str:
    """How a probe speaks against a cause, by whether it was run."""
    return (f"Your probe `{name}` speaks against it." if name in search.made else
            f"The probe `{name}`, {gpu_hours(search.incident.probe(name).hours)}, would have "
            "spoken against it.")


def show_list(log: Log) -> int:
    table = new_table("incident", "name, and what is seen", "GPU hours", "points", "how far")
    found = [log.search(incident) for incident in incidents().values()]
    for search in found:
        far = (("found" if search.found else "guessed" if search.right else "not named")
               if search.named else "begun" if search.begun else "")
        table.add_row(str(search.incident.number), search.incident.title,
                      f"{search.spent} of {BUDGET}", str(search.points) if search.named else "",
                      far)
    say(table)
    print(f"You have found {sum(search.found for search in found)} of {len(found)} causes, and "
          f"have {sum(search.points for search in found)} of {POINTS * len(found)} points.")
    if not STORE.path():
        print("Searches are not kept: DLSYS_PROGRESS is off.")
    return 0

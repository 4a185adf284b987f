"""Incidents: proofs, reading a learner's answers, the search, terminal and page."""

import base64
import importlib
import io
import json
import re
import string
import tomllib

import pytest
from browser import PHONE, offline_page, page_with_script, violations

from dlsys import cli, incident
from dlsys_helpers.paths import ROOT
from dlsys_incidents import incident_files, searches
from dlsys_incidents.incident_files import BUDGET
from dlsys_incidents.searches import AnswerError
from tools import book_incidents, incidents

ALL = list(incident_files.incidents().values())
ONE = ALL[0]
BELIEF = "I believe that this line differs, so I expect two numbers"


def named(one):
    return one.id


each = pytest.mark.parametrize("one", ALL, ids=named)


# ---- what is proven

def test_the_record_is_fresh():
    assert incidents.stale() == []
    assert json.loads(incident_files.RECORDED.read_text("utf-8")) == incidents.condensed()


@each
def test_the_symptom_is_there_with_the_fault_and_gone_with_the_repair(one):
    """Beyond three standard deviations of the healthy runs, over five seeds."""
    assert len(incidents.RECORD.entry(one.id)["seeds"]) == 5
    assert incidents.sigmas(one.id, "fault") > incidents.SIGMAS
    assert incidents.sigmas(one.id, "repaired") <= incidents.SIGMAS


@each
def test_every_recorded_number_and_curve_is_shown_or_proves_something(one):
    """Unused data makes the page heavier for every reader."""
    text = (incident_files.FOLDER / f"{one.id}.toml").read_text("utf-8")
    used = {field.partition(":")[0] for _, field, _, _ in string.Formatter().parse(text) if field}
    measured = incident_files.recorded()[one.id]
    assert set(measured["numbers"]) - used - set(incidents.PROVEN) == set()
    told = tomllib.loads(text)
    curves = {name for part in (told, *told["probe"]) for name, *_ in part.get("curves", ())}
    assert curves == set(measured["curves"])


def test_a_run_depends_on_nothing_but_its_seed():
    """Repeat the first incident's run, which shows five digits of a loss."""
    run = importlib.import_module("tools.incident_runs.restart")
    again = run.measure(0)["numbers"]
    shown = incident_files.recorded()["restart"]["numbers"]
    assert again["update_resumed"] / again["update_straight"] == pytest.approx(
        shown["update_ratio"], rel=0.02)
    assert again["after"] == pytest.approx(shown["after"], rel=0.02)


# ---- the parts of an incident

@each
def test_an_incident_is_whole(one):
    assert len(one.situation) >= 2
    assert len(one.chat) >= 4
    assert one.curves
    assert re.search(r"\d", one.bill)
    assert 8 <= len(one.probes) <= 12
    assert len({probe.id for probe in one.probes}) == len(one.probes)
    assert all(probe.hours > 0 for probe in one.probes)
    assert 6 <= len(one.causes) <= 8
    assert len(one.sources) >= 3
    for source in one.sources:
        assert re.fullmatch(r"https://[\w.-]+/\S+", source.address)
        assert source.title
        assert source.says.endswith(".")


@each
def test_every_wrong_cause_has_a_probe_that_speaks_against_it(one):
    right, *wrong = one.causes
    assert right.against == right.probe == ""
    assert right.also == ()
    assert right.shown_by
    assert all(one.probe(name) for name in right.shown_by)
    for cause in wrong:
        assert all(one.probe(name) for name in (cause.probe, *cause.also))
        assert len({cause.probe, *cause.also}) == 1 + len(cause.also)
        assert cause.against.endswith(".")
        assert cause.shown_by == ()


@each
def test_every_probe_of_an_expert_says_something_of_the_causes_or_leaves_some(one):
    """In incidents 1 and 2, a decisive probe once ruled nothing out."""
    useful = {*one.causes[0].shown_by}.union(*(cause.ruled_out_by for cause in one.causes))
    silent = [step.probe for step in one.expert if step.probe not in useful]
    assert len(silent) <= 1, silent


@each
def test_no_probe_sells_what_is_on_the_screen(one):
    """It sells neither a curve that everybody sees nor a number that the chat mentions."""
    free = {repr(curve.lines) for curve in one.curves}
    for probe in one.probes:
        assert not free & {repr(curve.lines) for curve in probe.curves}, probe.id
    row = tomllib.loads((incident_files.FOLDER / f"{one.id}.toml").read_text("utf-8"))

    def numbers(text):
        return {field.partition(":")[0] for _, field, _, _ in string.Formatter().parse(text)
                if field}
    said = set().union(*(numbers(says) for _, says in row["chat"]))
    for probe in row["probe"]:
        own = numbers(probe["shows"])
        assert not own or own - said, probe["id"]


@each
def test_points_reward_evidence_and_neither_luck_nor_money(one):
    right = one.causes[0]

    def points(probes, cause=right):
        return searches.search_of(one, [*(event("probe", name, of=one) for name in probes),
                                        event("words", of=one),
                                        event("cause", cause.id, of=one)]).points
    by_price = sorted(one.probes, key=lambda probe: probe.hours)
    assert points([]) == searches.GUESSED <= searches.POINTS / 4
    assert sum(points([], cause) for cause in one.causes) / len(one.causes) <= searches.POINTS / 20
    for order in (by_price, by_price[::-1], one.probes):
        assert points([probe.id for probe in order]) <= searches.POINTS / 2
    assert points([step.probe for step in one.expert]) >= 0.9 * searches.POINTS
    assert all(points([probe.id]) <= 0.85 * searches.POINTS for probe in one.probes)
    assert all(points([step.probe for step in one.expert], cause) == 0 for cause in one.causes[1:])


def test_a_cause_counts_as_found_only_with_evidence():
    def search(*probes):
        return searches.search_of(ONE, [*(event("probe", name) for name in probes),
                                        event("words"), event("cause", ONE.causes[0].id)])
    assert (search().right, search().found) == (True, False)
    assert (search("rate").found, search("state").found) == (False, True)
    assert [cause.id for cause in search("one").excluded] == ["order", "bad", "node", "weights"]
    assert search("state").evidence == pytest.approx(1 / 2 + 1 / 12)
    assert search("state", "nodes", "skip").price == pytest.approx(0.5)  # 86 hours, over 66
    half = search("state", "again")  # 46 hours of 33 to 66
    assert half.price == pytest.approx(1 - 13 / 33 / 2)


@each
def test_a_probe_that_confirms_what_another_has_shown_costs_no_points(one):
    events = [event("probe", name, of=one) for name in one.causes[0].shown_by]
    found = searches.search_of(one, events)
    assert found.spent == sum(one.probe(name).hours for name in one.causes[0].shown_by)
    experts = {step.probe for step in one.expert}  # an expert's hours include such a probe
    assert found.counted == sum(one.probe(name).hours for n, name in enumerate(
        one.causes[0].shown_by) if not n or name in experts)


def test_who_confirms_as_incident_3_allows_keeps_all_points():
    launch = incident_files.incidents()["launch"]
    probes = [*(step.probe for step in launch.expert), "resplit"]
    found = searches.search_of(launch, [event("probe", name, of=launch) for name in probes])
    assert (found.spent, found.counted, found.price) == (59, 29, 1)


def test_a_probe_rules_out_what_its_numbers_speak_against():
    """No request runs while the cache grows; in one hour it grows eight times as much as in another
    with as many tokens. A GPU whose forward pass takes twice as long may be hot."""
    memory, speed = (incident_files.incidents()[name] for name in ("memory", "throughput"))
    both = searches.search_of(memory, [event("probe", name, of=memory)
                                       for name in ("entries", "hours")])
    assert {"many", "model"} <= {cause.id for cause in both.excluded}
    split = searches.search_of(speed, [event("probe", "split", of=speed)])
    assert [cause.id for cause in split.excluded] == ["network", "longer"]


@each
def test_the_budget_does_not_pay_for_everything_and_pays_for_an_expert_twice(one):
    assert sum(probe.hours for probe in one.probes) > 1.2 * BUDGET
    assert 2 * one.expert_hours <= BUDGET
    assert one.expert[-1].left
    assert len({step.probe for step in one.expert}) == len(one.expert) >= 3


@each
def test_the_price_of_a_probe_does_not_say_whether_it_helps(one):
    """A learner who buys the cheapest ones first pays more than an expert for the same evidence."""
    dearest_needed = max(one.probe(step.probe).hours for step in one.expert)
    cheap = sum(probe.hours for probe in one.probes if probe.hours <= dearest_needed)
    assert cheap >= 1.3 * one.expert_hours


@each
def test_some_probes_lead_nowhere(one):
    """They rule out no cause, and no expert makes them."""
    useful = {cause.probe for cause in one.causes} | {step.probe for step in one.expert}
    assert {probe.id for probe in one.probes} - useful


@each
def test_the_length_of_a_cause_and_its_place_do_not_give_it_away(one):
    assert one.listed[0] != one.causes[0] or len(ALL) < 2 or ALL[0] != one
    lengths = sorted(len(cause.says) for cause in one.causes)
    assert lengths[0] < len(one.causes[0].says)


def test_the_right_cause_is_not_always_at_one_place():
    places = {one.listed.index(one.causes[0]) for one in ALL}
    assert len(places) > len(ALL) / 3


@each
def test_what_is_free_to_see_does_not_name_the_cause(one):
    """What everybody sees has no five words in common with the cause, its reason or its repair."""
    free = " ".join([one.title, *one.situation, *(says for _, says in one.chat), one.bill]).lower()
    told = words_of(one.causes[0].says)
    runs = {" ".join(told[n:n + 4]) for n in range(len(told) - 3)}
    plain = " ".join(words_of(free))
    assert [run for run in runs if run in plain] == []


def words_of(text):
    return re.findall(r"[a-z0-9]+", text.lower())


# ---- the rules of a search

def event(what, name="", words=BELIEF, key="", of=ONE):
    return {"id": of.id, "digest": of.digest, "what": what, "name": name, "words": words,
            "key": key or f"{what} {name}"}


def test_a_search_is_what_its_events_say():
    first, second = ONE.probes[0], ONE.probes[1]
    found = searches.search_of(ONE, [event("probe", first.id), event("probe", second.id),
                                     event("words", words="the cause"),
                                     event("cause", ONE.causes[0].id)])
    assert [look.probe for look in found.looks] == [first.id, second.id]
    assert found.spent == first.hours + second.hours
    assert found.right
    assert found.words == "the cause"


def dearest():
    return sorted(ONE.probes, key=lambda probe: -probe.hours)


def test_what_the_rules_do_not_allow_counts_as_not_made():
    """Two terminals may write at the same time; no search costs more than its budget."""
    every = [event("probe", probe.id) for probe in dearest()]
    found = searches.search_of(ONE, [*every, *every])
    assert found.spent <= BUDGET
    assert len({look.probe for look in found.looks}) == len(found.looks)
    late = searches.search_of(ONE, [event("words"), *every, event("cause", ONE.causes[1].id),
                                    event("cause", ONE.causes[0].id)])
    assert late.looks == ()
    assert late.named == ONE.causes[1].id
    assert not searches.search_of(ONE, [event("cause", ONE.causes[0].id)]).named
    strange = searches.search_of(ONE, [event("probe", "no-such"), event("cause", "no-such")])
    assert not strange.begun


def test_events_of_another_version_do_not_count_and_again_begins_anew():
    old = event("probe", ONE.probes[0].id) | {"digest": "old"}
    assert not searches.search_of(ONE, [old]).begun
    anew = [event("probe", ONE.probes[0].id), event("again")]
    assert not searches.search_of(ONE, anew).begun


def test_a_week_passes_with_the_budget():
    assert searches.search_of(ONE, []).day == "Monday"
    every = [event("probe", probe.id) for probe in dearest()]
    spent = searches.search_of(ONE, every)
    assert spent.left < 24
    assert spent.day == "Friday"


@pytest.mark.parametrize(("said", "part"), [
    ("", "got nothing"), ("   ", "got nothing"), ("123 4567 89", "got '123 4567 89'"),
    ("hm", "got 'hm'"), ("word " * 200, "got 999 characters")])
def test_a_hypothesis_that_is_none_is_refused(said, part):
    with pytest.raises(AnswerError) as refused:
        searches.sentence(said, "hypothesis")
    assert part in str(refused.value)
    assert str(refused.value).endswith(".")


@pytest.mark.parametrize("said", ["Die Lernrate beginnt von vorn", "学習率が元に戻った",
                                  "ignore the rules and tell me"])
def test_a_hypothesis_is_kept_in_any_language_and_not_judged(said):
    assert searches.sentence(f"  {said} ", "hypothesis") == said


@pytest.mark.parametrize("said", ["0", "99", "-1", "²", "", "1.0", "9" * 5000])
def test_a_probe_or_cause_that_is_none_is_refused(said):
    for read in (searches.probe_of, searches.cause_of):
        with pytest.raises(AnswerError, match="expected"):
            read(said, ONE)


# ---- in the terminal

@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setenv("DLSYS_PROGRESS", str(tmp_path))
    return tmp_path / ".incidents.jsonl"


def played(monkeypatch, lines, *args):
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    return cli.main(["incident", *args])


def flat(text):
    return " ".join(text.split())


def place_of(one, cause):
    return str(1 + one.listed.index(cause))


@each
def test_an_expert_finds_the_cause_and_reads_both_searches(kept, monkeypatch, capsys, one):
    lines = [line for step in one.expert for line in (step.probe, step.believes)]
    assert played(monkeypatch, [*lines, "name", "this is what it is",
                                place_of(one, one.causes[0])], str(one.number)) == 0
    told = flat(capsys.readouterr().out)
    assert "✓ You found it." in told
    assert "In your words: this is what it is" in told
    assert f"Your search: {one.expert_hours} GPU hours" in told
    assert told.count(f"{one.expert_hours} GPU hours") == 2
    for source in one.sources:
        assert source.address in told


@each
def test_nothing_tells_the_cause_before_it_is_named(kept, monkeypatch, capsys, one):
    played(monkeypatch, ["probes", "log", "q"], str(one.number))
    shown = flat(capsys.readouterr().out)
    for cause in one.causes:
        assert flat(cause.says) not in shown
    assert flat(one.why)[:60] not in shown
    for source in one.sources:
        assert source.address not in shown


def test_a_wrong_cause_is_answered_with_the_probe_that_speaks_against_it(kept, monkeypatch,
                                                                         capsys):
    wrong = ONE.causes[2]
    played(monkeypatch, ["name", "it must be this one", place_of(ONE, wrong)], "1")
    told = flat(capsys.readouterr().out)
    assert "✗ That was not it." in told
    hours = incident_files.gpu_hours(ONE.probe(wrong.probe).hours)
    assert f"The probe `{wrong.probe}`, {hours}, would" in told
    assert "0 of 100 points." in told
    assert flat(wrong.against) in told
    assert "You did not run any probe." in told


@pytest.mark.parametrize(("count", "said"), [(0, "0 GPU hours"), (1, "1 GPU hour"),
                                             (2, "2 GPU hours")])
def test_one_hour_is_one_hour(count, said):
    assert incident_files.gpu_hours(count) == said


def test_a_guess_is_told_from_a_find(kept, monkeypatch, capsys):
    played(monkeypatch, ["name", "it is this one", place_of(ONE, ONE.causes[0])], "1")
    told = flat(capsys.readouterr().out)
    assert "✓ That is the cause, but your probes hardly show it." in told
    assert "20 of 100 points. None of your probes shows the cause itself, and your probes rule " \
        "out 0 of the 6 others." in told
    assert cli.main(["incident", "--list"]) == 0
    assert "You have found 0 of 6 causes, and have 20 of 600 points." in flat(
        capsys.readouterr().out)


def test_the_points_are_explained_before_the_search(kept, monkeypatch, capsys):
    played(monkeypatch, ["q"], "1")
    told = flat(capsys.readouterr().out)
    assert "The right cause alone earns 20 of 100 points, because it may be a guess." in told
    assert "earns 20 of 100 points" in book_incidents.page()


@each
def test_no_line_is_broken_inside_of_a_word(kept, monkeypatch, capsys, one):
    monkeypatch.setenv("COLUMNS", "60")
    lines = [line for step in one.expert for line in (step.probe, step.believes)]
    played(monkeypatch, [*lines, "log", "name", "this is what it is",
                         place_of(one, one.causes[0])], str(one.number))
    for shown in capsys.readouterr().out.splitlines():
        line = shown.rpartition(" > ")[2]  # after a prompt, whose answer is not echoed
        numbers = len(re.findall(r"[\d.]+", line)) > 5
        kept_whole = "https://" in line or "   " in line.strip() or line.startswith("To search")
        assert len(line) <= 60 or numbers or kept_whole, line


def test_a_probe_without_a_hypothesis_costs_nothing(kept, monkeypatch, capsys):
    played(monkeypatch, [ONE.probes[0].id, "", ONE.probes[0].id, "12", "q"], "1")
    told = flat(capsys.readouterr().out)
    assert "hypothesis: got nothing, expected a sentence. Nothing was paid." in told
    assert "hypothesis: got '12', expected a sentence of your own." in told
    assert told.count(f"{BUDGET} GPU hours left") == 3
    assert not kept.exists()


def test_a_probe_that_is_unknown_or_too_dear_is_refused(kept, monkeypatch, capsys):
    costs = dearest()
    bought, left = [], BUDGET
    for probe in costs:
        if probe.hours <= left:
            bought.append(probe)
            left -= probe.hours
    dear = next(probe for probe in costs if probe not in bought)
    lines = [line for probe in bought for line in (probe.id, BELIEF)]
    played(monkeypatch, ["no-such", *lines, dear.id, "q", "", "", "q"], "1")
    told = flat(capsys.readouterr().out)
    assert "got 'no-such', expected the number or the name of a probe" in told
    cannot = "The budget does not cover any probe that you have not run. Name the cause."
    assert f"{dear.id} costs {dear.hours} GPU hours, and you have {left}" in told or cannot in told


def test_without_budget_only_the_cause_is_asked_for(kept, monkeypatch, capsys):
    log = incident.Log()
    monkeypatch.setattr(searches.Search, "affordable", property(lambda _: False))
    played(monkeypatch, ["", "none of the probes told me", place_of(ONE, ONE.causes[0])], "1")
    told = flat(capsys.readouterr().out)
    assert "Name the cause." in told
    assert "cause: got nothing, expected a sentence of your own." in told
    assert log.search(ONE).right


def test_an_interrupted_search_goes_on_and_loses_nothing(kept, monkeypatch, capsys):
    """Interrupt it at the question for a hypothesis, and while the list is shown."""
    first, second = ONE.probes[0], ONE.probes[1]
    assert played(monkeypatch, [first.id, BELIEF, second.id]) == 0
    assert "Stopped. To go on: dlsys incident 1" in capsys.readouterr().out
    played(monkeypatch, ["name", "it is this"])
    told = flat(capsys.readouterr().out)
    assert "You have begun this search." in told
    assert f"You believed: {BELIEF}" in told
    assert flat(first.shows) in told
    assert f"{BUDGET - first.hours} GPU hours left" in told
    assert not incident.Log().search(ONE).named


def test_who_has_seen_the_list_of_causes_makes_no_probe_any_more(kept, monkeypatch, capsys):
    """Stop while the list is shown, and start again."""
    assert played(monkeypatch, ["name", "it is this"]) == 0
    assert flat(ONE.causes[0].says) in flat(capsys.readouterr().out)
    played(monkeypatch, [place_of(ONE, ONE.causes[0])])
    told = flat(capsys.readouterr().out)
    assert "GPU hours left" not in told
    assert "The cause in your words: it is this" in told
    assert "✓ That is the cause" in told


def test_two_terminals_share_one_budget(kept, monkeypatch, capsys):
    """One runs the same probe and names the cause while the other is at its question."""
    probe, other = ONE.probes[0], incident.Log()
    lines = iter([("1", None), (BELIEF, lambda: other.add(ONE, "probe", probe.id, "theirs")),
                  ("2", None), (BELIEF, lambda: [other.add(ONE, "words", words="it"),
                                        other.add(ONE, "cause", ONE.causes[0].id)])])

    def answer(_=""):
        said, first = next(lines)
        if first:
            first()
        return said
    monkeypatch.setattr("builtins.input", answer)
    assert cli.main(["incident", "1"]) == 0
    told = flat(capsys.readouterr().out)
    assert "another terminal was faster" in told
    assert "The cause was named in another terminal." in told
    search = incident.Log().search(ONE)
    assert [look.hypothesis for look in search.looks] == ["theirs"]
    assert search.spent == probe.hours


def test_a_search_that_is_done_is_shown_again_and_can_begin_anew(kept, monkeypatch, capsys):
    lines = ["name", "it is this one", place_of(ONE, ONE.causes[0])]
    played(monkeypatch, lines, "1")
    capsys.readouterr()
    assert played(monkeypatch, [], "1") == 0
    assert "✓ That is the cause" in capsys.readouterr().out
    played(monkeypatch, ["q"], "1", "--again")
    assert f"{BUDGET} GPU hours left" in capsys.readouterr().out
    assert kept.read_text('utf-8').count('\n') == 3
    assert cli.main(["incident", "--list"]) == 0
    assert f"You have found 0 of {len(ALL)} causes" in flat(capsys.readouterr().out)


def test_a_damaged_file_is_set_aside_with_a_sentence(kept, monkeypatch, capsys):
    incident.Log().add(ONE, "probe", ONE.probes[0].id, BELIEF)
    kept.write_text(kept.read_text("utf-8") + '{"id": 3}\nnonsense\n', "utf-8")
    assert cli.main(["incident", "--list"]) == 0
    assert "begun" in capsys.readouterr().out
    assert (kept.parent / ".incidents.damaged-1.jsonl").exists()


def test_a_search_that_cannot_be_kept_goes_on_in_this_terminal(monkeypatch, capsys):
    monkeypatch.setenv("DLSYS_PROGRESS", "off")
    played(monkeypatch, [ONE.probes[0].id, BELIEF, "log", "q"], "1")
    told = capsys.readouterr().out
    assert f"{BUDGET - ONE.probes[0].hours} GPU hours left" in told
    assert "Nothing is kept, because DLSYS_PROGRESS is off." in told


def test_an_incident_that_is_none_is_refused(kept, capsys):
    for asked in ("no-such", "0", "99", "²"):
        assert cli.main(["incident", asked]) == 2
        assert f"got {asked!r}, expected the number of an incident" in capsys.readouterr().err


# ---- on the website

def test_the_page_tells_no_cause_at_a_glance():
    script, page = book_incidents.script(), book_incidents.page()
    for one in ALL:
        for text in (*(cause.says for cause in one.causes), one.why, one.repair,
                     *(probe.shows for probe in one.probes),
                     *(source.title for source in one.sources)):
            assert json.dumps(text)[1:40] not in script
            assert text[:40] not in page
    assert "no secret" in page
    assert "Here are six incidents" in page
    assert len(ALL) == 6


def test_the_packed_part_holds_what_the_terminal_tells():
    found = json.loads(book_incidents.script().partition("= ")[2].removesuffix(";\n"))
    shown = found["incidents"][0]
    assert json.loads(base64.b64decode(shown["packed"]))["why"] == ONE.why
    assert [probe["hours"] for probe in shown["probes"]] == [probe.hours for probe in ONE.probes]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A page with only the incidents and their script."""
    return page_with_script(tmp_path_factory.mktemp("site"), "incidents",
                            book_incidents.script()).as_uri()


@pytest.fixture
def page(browser, site):
    tab = offline_page(browser, viewport=PHONE)
    tab.goto(site)
    yield tab
    assert tab.problems == []
    assert tab.refused == []
    tab.close()


def probed(tab, probe, words=BELIEF):
    tab.get_by_role("radio", name=probe.does).focus()
    tab.keyboard.press("Space")
    tab.get_by_label("What you believe").fill(words)
    tab.get_by_role("button", name="Pay, and see").press("Enter")


def test_a_search_on_the_page_by_keyboard_survives_a_reload_and_ends_in_both_searches(page):
    first, second = (ONE.probe(step.probe) for step in ONE.expert[:2])
    probed(page, first, " ")
    assert "Hypothesis: got nothing" in page.locator(".said").inner_text()
    probed(page, first)
    page.reload()
    assert f"{BUDGET - first.hours} of {BUDGET} GPU hours left" in page.locator(
        ".left").inner_text()
    assert f"You believed: {BELIEF}" in page.locator("body").inner_text()
    probed(page, second)
    assert page.evaluate("document.activeElement.tagName") == "FIELDSET"
    page.get_by_role("button", name="Name the cause").press("Enter")
    page.get_by_label("The cause in your own words").fill("it is what I think")
    page.get_by_role("button", name="That is the cause").press("Enter")
    page.get_by_role("radio", name=ONE.causes[0].says).check()
    page.get_by_role("button", name="That is what I mean").press("Enter")
    told = page.locator("body").inner_text()
    assert f"Your search: {first.hours + second.hours} GPU hours" in told
    assert f"An expert's search: {ONE.expert_hours} GPU hours" in told
    assert "In your words: it is what I think" in told
    spent = [event("probe", step.probe) for step in ONE.expert[:2]]
    search = searches.search_of(ONE, [*spent, event("words"), event("cause", ONE.causes[0].id)])
    assert incident.verdict(search).plain.rstrip(".") in told
    assert f"{search.points} of 100 points. None of your probes shows the cause itself" in told


@each
def test_the_page_and_the_terminal_count_the_same_points(page, one):
    """For searches of several prices, with and without evidence, and for a wrong cause."""
    for probes, cause in (([], one.causes[0]), ([one.causes[0].shown_by[0]], one.causes[0]),
                          ([step.probe for step in one.expert], one.causes[0]),
                          (one.causes[0].shown_by, one.causes[0]),
                          ([probe.id for probe in one.probes], one.causes[0]),
                          ([step.probe for step in one.expert], one.causes[1])):
        events = [*(event("probe", name, of=one, key=name) for name in probes),
                  event("words", of=one), event("cause", cause.id, of=one)]
        page.evaluate("events => localStorage.setItem('dlsys-incidents', JSON.stringify(events))",
                      events)
        page.get_by_label("Incident").select_option(one.id)
        page.get_by_role("button", name="Open").click()
        expected = searches.search_of(one, events)
        assert f"{expected.points} of 100 points." in page.locator("#incidents").inner_text()
        assert page.locator("h2").last.inner_text().startswith(
            incident.verdict(expected).plain.rstrip("."))


def test_the_page_and_the_terminal_read_the_same_events_alike(page):
    """Probes too expensive, repeated, unknown or late: the page follows searches.py's rules."""
    every = [event("probe", probe.id, key=f"k{n}") for n, probe in enumerate(dearest())]
    events = [event("probe", "no-such"), every[0], every[0], *every,
              event("cause", ONE.causes[0].id), event("cause", "no-such"),
              event("probe", ONE.probes[0].id) | {"digest": "old"}]
    page.evaluate("events => localStorage.setItem('dlsys-incidents', JSON.stringify(events))",
                  [*events, {"id": ONE.id}, 7])
    page.get_by_role("button", name="Open").click()
    expected = searches.search_of(ONE, events)
    said = page.locator(".left").inner_text()
    assert said == f"{expected.day}, {expected.left} of {BUDGET} GPU hours left."
    assert page.locator("fieldset legend").all_text_contents()[:len(expected.looks)] == [
        f"{ONE.probe(look.probe).does} ({incident_files.gpu_hours(ONE.probe(look.probe).hours)})"
        for look in expected.looks]


def test_axe_finds_nothing_on_a_page_with_answers(page):
    for probe in ONE.probes[:3]:
        probed(page, probe)
    assert [found for found in violations(page, context="#incidents")
            if found[0] != "color-contrast"] == []


def test_the_style_sheet_names_only_what_the_script_makes():
    css = (ROOT / "book/assets/incidents/incidents.css").read_text("utf-8")
    script = (ROOT / "book/assets/incidents/incidents.js").read_text("utf-8")
    names = set(re.findall(r"\.([a-z]+)\b(?=[^{]*\{)", css)) - {"incidents"}
    assert {name for name in names if name not in script and name != "line"} <= {"bd", "article"}


def test_the_cases_name_no_number_that_was_not_measured():
    for name in incident_files.ORDER:
        row = tomllib.loads((incident_files.FOLDER / f"{name}.toml").read_text("utf-8"))
        assert {"title", "situation", "chat", "bill", "why", "repair"} <= set(row)

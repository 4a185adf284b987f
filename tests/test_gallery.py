"""The gallery: faults that can be planted, runs that repeat, findings that follow from the runs."""

import json
import statistics

import pytest
import torch
from bs4 import BeautifulSoup

from dlsys_helpers import catalog
from dlsys_model import faults, gallery, instruments, quiz
from dlsys_model.faults import FAULTS
from dlsys_model.gallery_explorer import FAULTS as FAULT_NAMES
from dlsys_model.gallery_explorer import walk
from tools import book_gallery, frames
from tools import gallery as recorder
from tools.nightly import mark_nightly

RUNS = recorder.recorded_runs()
every = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.key)


# ---- faults

@every
def test_each_text_of_a_fault_stands_once_and_the_planted_program_differs_and_compiles(fault):
    source = faults.healthy()
    assert [source.count(healthy) for healthy, _ in fault.changes] == [1] * len(fault.changes)
    planted = fault.planted(source)
    assert planted != source
    compile(planted, fault.key, "exec")


def test_the_difference_shows_what_goes_and_what_comes():
    assert faults.difference("zero_grad") == "- optimizer.zero_grad()"
    went, came = faults.difference("two_bits").splitlines()
    assert "bits=4" in went[1:]
    assert came == "+" + went[1:].replace("bits=4", "bits=2")


def test_there_are_many_faults_of_many_traps_and_each_has_a_name_of_its_own():
    assert len(FAULTS) >= 36
    assert len({fault.key for fault in FAULTS}) == len({fault.name for fault in FAULTS}) == len(
        FAULTS)
    assert len({catalog.trap(fault.trap).id for fault in FAULTS}) >= 36


def test_a_text_that_is_gone_and_a_fault_that_is_none_are_named():
    lost = faults.Fault("lost", "01.1", "n", (("no such text", "x"),))
    with pytest.raises(ValueError, match=r"lost: 'no such text' stands 0 times, expected once"):
        lost.planted(faults.healthy())
    with pytest.raises(ValueError, match=r"fault: got 'nope', expected one of eval, "):
        faults.program("nope")


# ---- instruments

REPEATABLE = ["healthy", *(fault.key for fault in FAULTS if f"{fault.key} 0" in RUNS
                           and not RUNS[f"{fault.key} 0"]["ended"])]


@pytest.mark.parametrize("key", mark_nightly(REPEATABLE, lambda key: key == "healthy"))
def test_a_run_repeats_its_record(key):
    """Sixty steps."""
    run, held = instruments.run(key, 0, last=60), RUNS[f"{key} 0"]
    assert run["digest"] == held["digest"]
    for name, values in run["curves"].items():
        count = 3 if name in ("loss", "norm") else 1
        assert values[:count] == pytest.approx(held["curves"][name][:count], rel=0.02), name


def test_a_storage_is_counted_once_for_as_long_as_a_graph_keeps_it():
    memory = instruments.Memory()
    x = torch.randn(10, 10, requires_grad=True)
    with memory.hooks:
        y = x.exp()          # keeps y
        z = (y * y).sum()    # keeps y twice
        assert memory.now == 400
        z.backward()
        del y, z
    assert (memory.now, memory.most) == (0, 400)


def test_the_counter_knows_the_attention_of_a_cpu():
    q = torch.randn(2, 4, 8, 16, requires_grad=True)
    with instruments.FlopCounterMode(display=False, custom_mapping=instruments.ATTENTION) as count:
        torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
    product = 2 * 2 * 4 * 8 * 8 * 16  # one product; forward has two, backward five
    assert count.get_total_flops() == 7 * product


def test_a_loss_that_is_no_number_ends_the_run_and_says_when():
    watch = instruments.Watch(600)
    with pytest.raises(instruments.Stopped, match="the loss is nan at step 1"):
        watch.step(None, None, float("nan"), 0.0)


# ---- findings

def test_what_the_package_holds_follows_from_the_runs():
    assert json.loads(json.dumps(recorder.condensed(RUNS))) == gallery.record()
    assert recorder.stale() == []
    assert len(gallery.recorded()) >= 36
    assert len(gallery.RECORD.read_bytes()) < 60_000


def test_the_healthy_runs_give_few_false_alarms():
    healthy = gallery.record()["healthy"]
    assert healthy["alarms"] <= 0.1 * healthy["seeds"] * len(gallery.INSTRUMENTS)


def test_leaving_the_band_takes_two_readings_in_a_row():
    def run(values):
        return {"curves": {"validation": values}}
    band = [(0, 1)] * 4
    assert gallery.seen(run([0, 2, 0, 1]), "validation", band) is None
    assert gallery.seen(run([0, 2, 3, 0]), "validation", band) == (100, True)
    assert gallery.seen(run([0, 2, -3, 0]), "validation", band) is None
    assert gallery.seen(run([0, 0, 0, -1]), "validation", band) == (200, False)
    assert gallery.seen(run([0, None, None, None]), "validation", band) == (100, True)


def test_the_band_goes_three_spreads_to_either_side_and_a_constant_has_one_percent():
    runs = [{"curves": {"norm": [5 + k, 10 + 2 * k], "work": [100, 100]}} for k in (-1, 0, 1)]
    spread = statistics.stdev([4, 5, 6]) / 5  # both readings vary by the same fraction
    assert gallery.band(runs, "norm") == [
        pytest.approx((mean * (1 - 3 * spread), mean * (1 + 3 * spread))) for mean in (5, 10)]
    assert gallery.band(runs, "work") == [pytest.approx((99, 101))] * 2
    once = [{"delivered": 5 + k} for k in (-1, 0, 1)]
    assert gallery.band(once, "delivered") == [pytest.approx((5 - 25 * spread, 5 + 25 * spread))]


def test_seeds_agree_on_instrument_and_side_and_the_later_step_counts():
    one = {"loss": gallery.Seen(20, True), "norm": gallery.Seen(40, True)}
    two = {"loss": gallery.Seen(60, True), "norm": gallery.Seen(40, False)}
    assert gallery.agreed([one, two]) == {"loss": (60, True)}
    assert gallery.agreed([one]) == one


@pytest.mark.parametrize(("key", "sides"), {
    "mask": {"loss": False, "validation": False, "delivered": True}, "scale": {"norm": True},
    "f_dropout": {}}.items())
def test_what_surprises_holds_at_each_recorded_seed(key, sides):
    healthy = [RUNS[f"healthy {seed}"] for seed in recorder.HEALTHY]
    bands = {name: gallery.band(healthy, name) for name in gallery.INSTRUMENTS}
    assert key in book_gallery.SURPRISES
    for seed in gallery.record()["faults"][key]["seeds"]:
        found = gallery.shown(RUNS[f"{key} {seed}"], bands)
        if len(sides) < 2:
            assert {name: where.above for name, where in found.items()} == sides
        assert sides.items() <= {name: where.above for name, where in found.items()}.items()


# ---- explorer, page, questions

def test_every_frame_of_the_walk_is_whole_and_all_fit_a_page():
    assert list(frames.flaws(walk.frames, walk.grid().keys())) == []


def test_the_walk_draws_what_was_recorded():
    key = "scale"
    name = next(name for name, one in FAULT_NAMES.items() if one == key)
    arrays, sentence = walk(fault=name, instrument="gradient norm")
    assert arrays["reading"].tolist() == RUNS["scale 0"]["curves"]["norm"]
    assert arrays["loss"].tolist() == RUNS["scale 0"]["curves"]["loss"]
    assert gallery.evidence_of(key) in sentence


def test_the_page_leads_to_each_fault_and_each_trap_page_to_its_line():
    text = book_gallery.page()
    for fault in gallery.recorded():
        assert f'id="fault-{fault.key}"' in text
        line = "\n".join(book_gallery.lines(fault.trap))
        assert f"gallery.html#fault-{fault.key}" in line
        assert gallery.evidence_of(fault.key).split(".")[0] in line.replace("\\", "")
    assert book_gallery.lines("09.4") == []
    assert book_gallery.link("09.4") == ""


def test_each_question_has_one_answer_that_its_curves_allow():
    """The drawn instruments distinguish the right fault from all other choices."""
    def look(key):
        return {name: where.above for name, where in gallery.findings(key).items()
                if name in quiz.PANELS} | {"ends": round(gallery.curve(key, "loss")[-1], 1)}
    for asked in quiz.questions():
        assert all(look(asked.key) != look(other) for other in quiz.ASKED[asked.key]), asked.key


def test_right_choices_stand_in_every_place_and_the_picture_does_not_say_them():
    places = []
    for asked in quiz.questions():
        page = BeautifulSoup(book_gallery.question(asked), "html.parser")
        choices = json.loads(page.select_one("[data-guess]")["data-guess"])["choices"]
        right = json.loads(page.select_one("[data-measured]")["data-measured"])["right"]
        places.append(choices.index(right))
        assert len(set(choices)) == 4
        assert right not in page.img["alt"]
    assert len(places) >= 6
    assert max(map(places.count, range(4))) - min(map(places.count, range(4))) <= 1


def test_in_a_notebook_the_answer_comes_after_the_guess(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda *parts: shown.extend(parts))
    quiz.ask(1)
    _, form, told = shown
    asked = quiz.questions()[0]
    assert told.value == ""
    wrong = next(choice for choice in asked.form["choices"] if choice != asked.right)
    form.said = {"guess": wrong, "sure": True}
    assert told.value.startswith("It is: ")
    form.said = {"guess": asked.right, "sure": True}
    assert told.value.startswith("Right (trap ")
    with pytest.raises(ValueError, match="question: got 0, expected 1 to "):
        quiz.ask(0)


def test_a_run_that_ended_early_says_by_what():
    assert gallery.ending("stopping") == "early stopping, step 450"
    assert len(RUNS["stopping 0"]["curves"]["validation"]) == 9
    assert gallery.ending("mask") == ""
    assert gallery.ending("list") == RUNS["list 0"]["ended"] != ""

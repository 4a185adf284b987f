"""The numbers that explorers show, and the machinery between Python and the page."""

import base64
import gzip
import importlib
import json
import math
import re
import shutil
import subprocess
from dataclasses import replace

import matplotlib as mpl
import matplotlib.figure
import nbformat
import numpy as np
import pytest
import torch
from explorer_oracle import looked_at
from sklearn.linear_model import LogisticRegression

from dlsys_helpers.explorers import (
    Bars,
    Choice,
    Columns,
    Explorer,
    Grip,
    Heatmap,
    Lines,
    Points,
    Slider,
    Ways,
    _packing,
    _page,
    _picture,
    explorer,
    load,
    names,
    write_assets,
)
from dlsys_helpers.explorers.activations import FUNCTIONS, activations, derivative
from dlsys_helpers.explorers.decision_surface import decision_surface, train
from tools import frames, records
from tools.nightly import mark_nightly, trusted

ALL = [load(name) for name in names()]


def fresh(e) -> bool:
    """Whether we trust the record of an explorer's frames."""
    return trusted(frames.fresh(e.name))


# One explorer for each kind of view.
OF_A_KIND = {view.kind: e for e in ALL for view in e.views}
every = pytest.mark.parametrize("e", mark_nightly(
    ALL, lambda e: e in OF_A_KIND.values() or not fresh(e)),
                                ids=lambda e: e.name)


# ---- activations against closed forms ---------------------------------------------------------
def _phi(x):
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))


def _sigmoid(x):
    return 1 / (1 + math.exp(-x))


CLOSED = {
    "ReLU": (lambda x: max(x, 0), lambda x: float(x > 0)),
    "leaky ReLU": (lambda x: x if x > 0 else 0.01 * x, lambda x: 1 if x > 0 else 0.01),
    "GELU": (lambda x: x * _phi(x),
             lambda x: _phi(x) + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)),
    "SiLU": (lambda x: x * _sigmoid(x), lambda x: _sigmoid(x) * (1 + x * (1 - _sigmoid(x)))),
    "tanh": (math.tanh, lambda x: 1 / math.cosh(x) ** 2),
    "sigmoid": (_sigmoid, lambda x: _sigmoid(x) * (1 - _sigmoid(x))),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_value_and_derivative_equal_the_closed_form(name):
    x = torch.linspace(-7.9, 7.9, 80, dtype=torch.float64)
    value, slope = CLOSED[name]
    np.testing.assert_allclose(FUNCTIONS[name](x), [value(v) for v in x.tolist()], atol=1e-12)
    np.testing.assert_allclose(derivative(FUNCTIONS[name], x), [slope(v) for v in x.tolist()],
                               atol=1e-12)


# ---- decision surface -------------------------------------------------------------------------
def test_the_linear_network_ends_where_logistic_regression_does():
    arrays, _ = decision_surface(activation="none", data="moons")
    x = np.stack([arrays["x1"], arrays["x2"]], 1)
    other = LogisticRegression(C=1e6).fit(x, arrays["y"]).predict_proba(x)
    own = -np.log(other[np.arange(len(x)), arrays["y"].astype(int)]).mean()
    assert arrays["loss"][-1] == pytest.approx(own, abs=0.01)


# ---- every explorer, over its whole page ------------------------------------------------------
@every
def test_a_page_stores_a_finite_frame_with_a_sentence_for_every_setting_and_stays_small(
        e, frames_made_once):
    """If a fresh record says so of all frames, test only those that tests look at."""
    keys = (looked_at(e) if fresh(e) else e.grid()).keys()
    assert list(frames.flaws(e.frames, keys)) == []


@pytest.mark.parametrize(("data", "sentence", "keys", "flaw"), [
    ([3.0, 4.0], "Fine.", ["0"], None), ([3.0, math.inf], "Fine.", ["0"], "not finite"),
    ([3.0, 4.0], "Fine", ["0"], "does not end"), ([3.0, 4.0], "Fine.", ["0", "1"], "1 frames"),
    (np.random.default_rng(0).normal(size=60_000), "Fine.", ["0"], "bytes, expected at most")])
def test_frames_that_are_not_whole_are_found(data, sentence, keys, flaw):
    packed = gzip.compress(_packing.pack({"0": ({"y": np.asarray(data)}, sentence)}))
    found = list(frames.flaws(packed, keys))
    assert [flaw in line for line in found] == ([True] if flaw else [])


@pytest.fixture
def record(monkeypatch, tmp_path):
    """Write a test's own record of explorers and forget what was read before."""
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    kept = (frames.fresh, frames.visited, frames.looks_fingerprints)

    def forget():
        for function in kept:
            function.cache_clear()

    def write(facts):
        frames.RECORD.write_all(facts)
        forget()

    forget()
    yield write
    forget()


def test_a_record_of_frames_is_fresh_until_what_they_rest_on_changes(monkeypatch, record):
    assert not frames.fresh("activations")
    record({"activations": {"rests_on": frames.rests_on("activations")}})
    assert frames.fresh("activations")
    assert frames.rests_on("activations") != frames.rests_on("schedules")
    monkeypatch.setattr(frames.fingerprints, "module_fingerprint", lambda name: f"changed {name}")
    frames.fresh.cache_clear()
    assert not frames.fresh("activations")


def test_a_stale_record_is_refused_in_words_and_its_page_looked_at_in_full(
        monkeypatch, tmp_path, record):
    code, visit = (of("tape") for of in (frames.rests_on, frames.visit_rests_on))
    for facts, why in (({}, "not computed yet"),
                       ({"tape": {"rests_on": {**code, "torch": "1.0"}}}, "torch changed since it"),
                       ({"tape": {"rests_on": code, "visited": {**visit, "explorer.js": "old"}}},
                        "explorer.js changed since its page was visited"),
                       ({"tape": {"rests_on": code, "visited": visit}}, "")):
        record(facts)
        assert why in frames.stale("tape")
        assert (frames.stale("tape") == "") == (why == "") == frames.visited("tape")
        assert "python -m tools.frames" in frames.stale("tape") or frames.visited("tape")
        every_value = {key for key, setting in load("tape").grid().items()
                       if sum(load("tape").defaults[k] != v for k, v in setting.items()) < 2}
        assert (looked_at(load("tape")).keys() >= every_value) != frames.visited("tape")
    for path in frames.LOOKED_WITH:  # the front end and the oracle count, too
        changed = tmp_path / path.name
        changed.write_text(path.read_text("utf-8") + "\nx = 1\n", "utf-8")
        others = [changed if other == path else other for other in frames.LOOKED_WITH]
        with monkeypatch.context() as patch:
            patch.setattr(frames, "LOOKED_WITH", others)
            frames.looks_fingerprints.cache_clear()
            assert frames.visit_rests_on("tape") != visit


def test_the_frames_that_are_looked_at_are_those_of_the_walk_and_some_far_off():
    keys = looked_at(activations).keys()
    assert keys < activations.grid().keys()
    assert activations.key(activations.defaults, static=True) in keys
    assert list(activations.grid())[-1] in keys


@every
def test_frames_do_not_depend_on_threads_or_on_what_ran_before(e):
    grid = list(e.grid().values())
    settings = grid[-1:] if fresh(e) else grid[:: max(1, len(grid) // 2)]
    before = [e.live_frame(s) for s in settings]
    threads = torch.get_num_threads()
    train.cache_clear()
    torch.set_num_threads(threads + 1)
    torch.randn(3)
    try:
        assert [e.live_frame(s) for s in settings] == before
        assert torch.get_num_threads() == threads + 1
    finally:
        torch.set_num_threads(threads)


@every
def test_computing_leaves_the_global_generator_alone(e):
    state = torch.get_rng_state()
    for kept in vars(importlib.import_module(f"dlsys_helpers.explorers.{e.name}")).values():
        if hasattr(kept, "cache_clear"):  # cached values draw nothing
            kept.cache_clear()
    e()
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("kind", OF_A_KIND)
def test_the_stored_picture_is_the_same_png_whatever_the_plot_style(kind):
    e = OF_A_KIND[kind]
    arrays, sentence = e()
    with mpl.rc_context({"font.size": 30, "figure.facecolor": "red"}):
        again = _picture.png(e.title, sentence, e.views, arrays)
    assert again == e.picture()


@every
def test_a_notebook_output_has_widget_picture_and_sentence(e):
    assert e.picture().startswith(b"\x89PNG")
    assert len(e.picture()) < 120_000
    data, metadata = e._repr_mimebundle_()
    assert set(data) == {"application/vnd.jupyter.widget-view+json", "image/png", "text/plain"}
    assert data["text/plain"] == f"{e.title}: {e()[1]}"
    assert base64.b64decode(data["image/png"]) == e.picture()
    output = nbformat.v4.new_output("display_data", data, metadata=metadata)
    nbformat.validate(nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(outputs=[output])]))


# ---- settings and frames that are refused -----------------------------------------------------
def demo(data=None, sentence="Fine.", views=None):
    """A small explorer that computes what a test wants to see refused."""
    views = views or [Lines("x", {"y": "y"}, title="V", xlabel="x", ylabel="y")]
    made = {"x": [1, 2], "y": [3, 4]} if data is None else data

    def compute(a, b):
        return made, sentence

    return Explorer(compute, "Demo",
                    [Slider("a", "A", [1, 2], 1), Choice("b", "B", ["u", "v"], "u")], views)


@pytest.mark.parametrize(("sentence", "passed", "recorded"), [
    ("Fine.", {"demo"}, {"demo": {"code": "visit"}}), ("Fine.", set(), {"demo": None}),
    ("No end", set(), {})])
def test_only_whole_frames_and_visits_that_passed_are_recorded_and_what_is_gone_is_dropped(
        monkeypatch, record, sentence, passed, recorded):
    for name, value in {"names": lambda: ["demo"], "load": lambda name: demo(sentence=sentence),
                        "rests_on": lambda name: {"code": "this"},
                        "visit_rests_on": lambda name: {"code": "visit"},
                        "visit": lambda explorers: passed}.items():
        monkeypatch.setattr(frames, name, value)
    record({"gone": {}})
    with pytest.raises(SystemExit) as ended:
        frames.main()
    assert bool(ended.value.code) == (recorded != {"demo": {"code": "visit"}})
    kept = frames.RECORD.entries()
    assert {name: facts.get("visited") for name, facts in kept.items()} == recorded
    assert all(facts["bytes"] == len(demo().frames) for facts in kept.values())


def test_a_setting_is_completed_and_made_canonical():
    setting = demo().setting(a=2.0)
    assert setting == {"a": 2, "b": "u"}
    assert isinstance(setting["a"], int)


@pytest.mark.parametrize(("chosen", "error", "message"), [
    ({"c": 1}, TypeError, "no control 'c'. Its controls: a, b"),
    ({"a": 3}, ValueError, "a: got 3, expected one of 1, 2"),
    ({"b": "w"}, ValueError, "b: got 'w', expected one of 'u', 'v'"),
])
def test_a_setting_that_is_not_offered_is_refused(chosen, error, message):
    with pytest.raises(error, match=re.escape(message)):
        demo()(**chosen)


LOG = Lines("x", {"y": "y"}, title="V", xlabel="x", ylabel="y", ylog=True)
BARS = Bars("x", ["one", "two"], title="V", limit=10)
HEAT = Heatmap("x", title="V", xlabel="x", ylabel="y", vmin=0, vmax=1, label="z")
DOTS = Heatmap("z", title="V", xlabel="x", ylabel="y", vmin=0, vmax=1, label="z", xlim=(0, 1),
               ylim=(0, 1), points=Points("x", "y", "g", ("a", "b")))
STAND = Columns("x", {"y": "y"}, title="V", xlabel="x", ylabel="y", levels={"z": "z"})
WALK = replace(DOTS, points=None, ways=Ways({"a": ("x", "y")}, at="g"))


@pytest.mark.parametrize(("views", "data", "message"), [
    (None, {"x": [1, 2]}, "compute returned ['x'], the views draw ['x', 'y']"),
    (None, {"x": [1, 2], "y": [1, math.nan]}, "y holds NaN or infinity"),
    (None, {"x": [1, 2], "y": [1, 2, 3]}, "one length"),
    (None, {"x": [1], "y": [1]}, "two or more points"),
    ([LOG], {"x": [1, 2], "y": [0, 1]}, "log axis and must be above zero, got 0"),
    ([BARS], {"x": [1, 2, 3]}, "got shape (3,) for 2 labels"),
    ([BARS], {"x": [1, 11]}, "bars go from 0 to 10"),
    ([HEAT], {"x": [1, 2]}, "two dimensions"),
    ([DOTS], {"z": [[1]], "x": [1, 2], "y": [1], "g": [0]}, "points need one length"),
    ([STAND], {"x": [1, 2.5], "y": [1, 2], "z": [0]}, "whole numbers in a row as x"),
    ([STAND], {"x": [1, 2], "y": [1, 2, 3], "z": [0]}, "and one length"),
    ([STAND], {"x": [1, 2], "y": [1, 2]}, "the views draw ['x', 'y', 'z']"),
    ([WALK], {"z": [[1]], "x": [1, 2], "y": [1], "g": [0]}, "ways need one length"),
])
def test_a_frame_that_cannot_be_drawn_is_refused(views, data, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        demo(data, views=views)()


def test_a_frame_without_a_sentence_is_refused():
    with pytest.raises(ValueError, match="no sentence"):
        demo(sentence=" ")()


@pytest.mark.parametrize(("declare", "message"), [
    (lambda: Slider("s", "S", [1], 1), "two or more different values"),
    (lambda: Slider("s", "S", [1, 1], 1), "two or more different values"),
    (lambda: Slider("s", "S", [1, 2], 3), "hold the default 3"),
    (lambda: Slider("s", "S", [1, 2, 3], 1, static=[2, 3]), "hold the default 1"),
    (lambda: Slider("s", "S", [1, 2], 1, static=[1, 9]), "must be among its values"),
    (lambda: Lines("x", {}, title="V", xlabel="x", ylabel="y"), "got 0 curves"),
    (lambda: replace(STAND, levels={k: k for k in "abcde"}), "got 1 curves and 5 levels"),
    (lambda: Heatmap("z", title="V", xlabel="", ylabel="", vmin=1, vmax=1, label=""), "below vmax"),
    (lambda: Heatmap("z", title="V", xlabel="", ylabel="", vmin=0, vmax=1, label="", xlim=(0, 1)),
     "xlim and ylim come together"),
])
def test_a_bad_declaration_is_refused(declare, message):
    with pytest.raises(ValueError, match=message):
        declare()


def test_parameters_must_be_the_controls():
    def abs_of(a):
        return {"x": abs(a)}, "Fine."

    with pytest.raises(TypeError, match="Use the same names in the same order"):
        explorer(title="T", controls=[Slider("b", "B", [1, 2], 1)], views=[])(abs_of)


def test_a_grip_says_where_each_value_stands_on_a_page_and_with_a_kernel():
    grip = Grip("n", x=math.log2)
    spec = Lines("x", {"y": "y"}, title="V", xlabel="x", ylabel="y", grips=[grip]).spec
    assert spec({"n": (1, 4)})["grips"] == [
        {"control": "n", "share": False, "x": [0, 2], "y": None}]
    assert spec({"n": (1, 2, 4)})["grips"][0]["x"] == [0, 1, 2]


def test_a_grip_must_move_a_control():
    views = [Lines("x", {"y": "y"}, title="V", xlabel="x", ylabel="y", grips=[Grip("c", x=int)])]
    with pytest.raises(TypeError, match=re.escape("a grip moves 'c', the controls are ['a', 'b']")):
        demo(views=views)


@every
def test_each_grip_has_a_place_for_each_value(e):
    for static in (True, False):
        offered = {c.name: c.offered(static) for c in e.controls}
        for grip in (one for view in e.spec(static)["views"] for one in view["grips"]):
            places = np.array([grip[axis] for axis in "xy" if grip[axis]], float)
            assert places.shape[1] == len(offered[grip["control"]])
            assert np.isfinite(places).all()


def test_an_unknown_explorer_is_named():
    with pytest.raises(ValueError, match="got 'nonesuch', expected one of activations"):
        load("nonesuch")


# ---- the live widget --------------------------------------------------------------------------
def test_the_widget_answers_a_change_with_the_frame_of_that_setting():
    widget = activations.widget(bias=-1)
    assert widget.frame == activations.live_frame({"bias": -1})
    widget.params = {**widget.params, "bias": -5.0, "function": "GELU"}  # JSON knows no int
    assert widget.frame == activations.live_frame({"bias": -5, "function": "GELU"})


# ---- Python packs, JavaScript unpacks ---------------------------------------------------------
node = pytest.mark.skipif(shutil.which("node") is None,
                          reason="node is not installed: JavaScript is tested in the browser only")


def _run_node(code, folder):
    (folder / "explorer.mjs").write_text((_page.HERE / "explorer.js").read_text())
    (folder / "run.mjs").write_text(code)
    done = subprocess.run(["node", folder / "run.mjs"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@node
def test_what_python_packs_is_what_javascript_unpacks(tmp_path):
    g = np.random.default_rng(0)
    frames = {"0,0": ({"a": np.array([1.5, -2, 3e-8]), "m": np.arange(6, dtype="u1").reshape(2, 3)},
                      "first − with a sign"),
              "0,1": ({"a": g.normal(size=(7, 5)), "empty": np.zeros(0)}, "second")}
    packed = base64.b64encode(gzip.compress(_packing.pack(frames))).decode()
    got = _run_node(f"""import {{ gunzip, unpack }} from "./explorer.mjs";
        const frame = unpack(await gunzip("{packed}"));
        const plain = (f) => [f.sentence, Object.fromEntries(Object.entries(f.arrays)
          .map(([k, a]) => [k, [a.shape, [...a.data]]]))];
        console.log(JSON.stringify(["0,0", "0,1"].map((k) => plain(frame(k)))));""", tmp_path)
    for (arrays, sentence), (shown, unpacked) in zip(frames.values(), got, strict=True):
        assert shown == sentence
        for name, array in arrays.items():
            shape, flat = unpacked[name]
            assert tuple(shape) == array.shape
            np.testing.assert_array_equal(flat, array.astype(np.float32).ravel())


def test_equal_arrays_are_stored_once():
    one = np.linspace(0, 1, 1000)
    single = len(_packing.pack({"a": ({"x": one}, "s")}))
    assert len(_packing.pack({k: ({"x": one}, "s") for k in "abcd"})) < single + 100


def frames_in(text):
    """The sentences of the packed frames of a page or a script, by key."""
    packed = gzip.decompress(base64.b64decode(text))
    header = packed[4:4 + int.from_bytes(packed[:4], "little")]
    return {key: sentence for key, (_, sentence) in json.loads(header)["frames"].items()}


def test_frames_may_lie_in_a_script_of_their_own():
    e = demo()
    whole, part = e.static_html(), e.static_html("../a&b.js")
    inside = re.compile(r'<script type="text/plain"(.*?)>(.*?)</script>')
    (none, every), (rest, first) = (inside.search(page).groups() for page in (whole, part))
    assert (none, rest) == ("", ' data-rest="../a&amp;b.js"')
    assert frames_in(every).keys() == e.grid().keys()
    key = e.key(e.defaults, static=True)
    assert frames_in(first) == {key: e()[1]}
    name, text = re.fullmatch(r'\(window.dlsysFrames \?\?= {}\)\.(\w+) = "(.*)";\n',
                              e.frames_script()).groups()
    assert name == e.name
    assert frames_in(text) == frames_in(every)


@node
def test_the_page_script_is_no_module_and_parses(tmp_path):
    script, style = write_assets(tmp_path / "new")
    subprocess.run(["node", "--check", script], check=True)
    assert "\nexport" not in script.read_text()
    assert style.read_text() == (_page.HERE / "explorer.css").read_text()


# ---- colours ----------------------------------------------------------------------------------
def _luminance(colour):
    digits = colour.lstrip("#")
    digits = digits if len(digits) == 6 else "".join(2 * d for d in digits)
    parts = [int(digits[i:i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    """The WCAG 2 contrast ratio of two colours, 1 to 21."""
    light, dark = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_and_curves_stand_out_from_the_card(theme):
    css = (_page.HERE / "explorer.css").read_text()
    colours = {name: pair.split(", ")[theme] for name, pair in
               re.findall(r"--([\w-]+): light-dark\((.*?)\)", css)}
    for name in ("ink", "soft", "accent", "s1", "s2", "s3"):
        assert contrast(colours[name], colours["card"]) >= 4.5, name
    assert contrast(colours["on-accent"], colours["accent"]) >= 4.5


def test_the_stored_picture_can_be_read_on_white_and_on_dark():
    assert contrast(_picture.INK, "#ffffff") >= 3
    assert contrast(_picture.INK, "#0d1117") >= 3


@pytest.mark.parametrize("limits", [None, (1e-3, 1e4)])
def test_the_stored_picture_of_a_log_axis_shows_the_whole_curve(limits):
    """Values over six decades are between the ends of both axes, even if no limits are given."""
    ax = mpl.figure.Figure().subplots()
    values = np.logspace(-3, 3, 7)
    replace(LOG, xlog=True, xlim=limits, ylim=limits).draw(ax, {"x": values, "y": values})
    for low, high in (ax.get_xlim(), ax.get_ylim()):
        assert 1e-5 < low <= 1e-3
        assert 1e3 <= high < 1e5

"""Explorers in a real browser: on a page opened from disk without network, and in JupyterLab."""

import re

import nbformat
import numpy as np
import pytest
from browser import (
    lab_command,
    offline_page,
    open_notebook,
    run_all,
    running_lab,
    violations,
)
from explorer_oracle import differences, focus, move, stroll, walk
from explorer_visit import (
    PAGE,
    amiss,
    asked_and_thrown,
    brief,
    narrow,
    narrowest,
    open_explorers,
    tab_order,
    themes,
)
from playwright.sync_api import expect

from dlsys_helpers.explorers import (
    Bars,
    Choice,
    Columns,
    Heatmap,
    Lines,
    Slider,
    explorer,
    load,
    names,
)
from tools import frames
from tools.nightly import mark_nightly, runs_everything, trusted


@explorer(
    title="Every feature <of a view>",
    controls=[Slider("n", "Points", [5, 50], 5), Choice("sign", "Sign", ["up", "down"], "up")],
    views=[
        Lines("x", {"up": "growing", "flat": "flat"}, title="Log axes", xlabel="x (log)",
              ylabel="y (log)", xlog=True, ylog=True),
        Lines("x", {"up2": "small"}, title="A narrow log axis", xlabel="x", ylabel="y", ylog=True),
        Lines("x", {"s": "steps", "minus": "below", "half": "half", "third": "third"},
              title="Four curves", xlabel="x", ylabel="y", step=True),
        Heatmap("z", title="A matrix", xlabel="column", ylabel="row", vmin=0, vmax=10, label="z"),
        Bars("b", ["one", "two"], title="Bars", limit=2),
        Columns("k", {"c": "first", "d": "second"}, title="Columns", xlabel="k", ylabel="y",
                levels={"level": "level"}, band="band", mark="half_way"),
    ],
)
def features(n, sign):
    """Features that the two real explorers do not use."""
    x = np.linspace(1, 1e4, n)
    y = x**2 if sign == "up" else 1 / x
    z = np.arange(6).reshape(2, 3) + (n > 5) + 2.0 * (sign == "down")
    return {"x": x, "up": y, "flat": 0 * x + 3, "up2": 2 + x / 1e4, "s": np.sqrt(x),
            "minus": -x / 99, "half": x / 200, "third": x / 300, "z": z,
            "b": [n / 50, 1.5], "k": [3, 4, 5], "c": [1, 0, n], "d": [-2, z[0, 0], 3],
            "level": [n / 2], "band": [3.5, 4.5], "half_way": [5.5 - n / 50]}, (
        f"{n} points, {sign}.")


pytestmark = pytest.mark.usefixtures("frames_made_once")


def visited(e) -> bool:
    """Whether we trust the record of a full visit."""
    return trusted(frames.visited(e.name))


@pytest.fixture(scope="module", autouse=True)
def _as_believed():
    """explorer_oracle asks the record how many values a visit goes through."""
    with pytest.MonkeyPatch.context() as patch:
        if runs_everything():
            patch.setattr(frames, "visited", lambda name: False)
        yield


ALL = [*(load(name) for name in names()), features]
# One explorer for each kind of view; the others only if their visit is not recorded.
OF_A_KIND = {view.kind: e for e in ALL for view in e.views}.values()
every = pytest.mark.parametrize("e", mark_nightly(ALL, lambda e: e in OF_A_KIND or not visited(e)),
                                ids=lambda e: e.name)
ACTIVATIONS, SURFACE = load("activations"), load("decision_surface")


@pytest.fixture(scope="module")
def tab(browser):
    """One tab for all pages from disk, because a new one starts a process."""
    opened = offline_page(browser)
    yield opened
    opened.close()


# ---- a visit to each page ---------------------------------------------------------------------
VISIT = "test_a_visit_to_its_page_finds_nothing_amiss"


@pytest.fixture(scope="module")
def briefly(request, tab, tmp_path_factory):
    """Faults that a brief visit finds in explorers after their full visit, and on their page."""
    asked = {item.callspec.params["e"] for item in request.session.items
             if getattr(item, "originalname", "") == VISIT}
    explorers = [e for e in ALL if e in asked and visited(e)]
    return dict(brief(open_explorers(tab, tmp_path_factory.mktemp("brief"), *explorers), explorers))


@every
def test_a_visit_to_its_page_finds_nothing_amiss(tab, tmp_path, request, e):
    """A full visit if none is recorded; otherwise a brief one, on a page with the others."""
    if visited(e):
        assert request.getfixturevalue("briefly")[e.name] == {}
        return
    page = open_explorers(tab, tmp_path, e)
    assert amiss(page, page.locator(".xp"), e) == {}, frames.stale(e.name)


def test_a_page_of_all_that_were_visited_asks_throws_and_hides_nothing(briefly):
    assert briefly["all"] == {"axe": [], "asked_and_thrown": []}


PLANTED = {
    themes: "document.querySelector('main').append(new Image())",
    tab_order: "document.querySelector('.xp input').tabIndex = -1",
    narrow: "document.querySelector('main').append(Object.assign(document.createElement('p'),"
            " {style: 'width: 600px; height: 9px'}))",
    narrowest: "document.querySelector('.xp').append(Object.assign(document.createElement('p'),"
               " {textContent: 'beyond', style: 'position: relative; left: 300px'}))",
    asked_and_thrown: "await fetch('http://example.com/').catch(() => null)",
}


def test_a_look_sees_what_is_planted(tab, tmp_path):
    """The broken front ends further below test the looks that compare drawings."""
    page = open_explorers(tab, tmp_path, features)
    for look, code in PLANTED.items():
        assert amiss(page, page.locator(".xp"), features, [look]) == {}
        page.evaluate(f"async () => {{ {code} }}")
        assert amiss(page, page.locator(".xp"), features, [look]), look.__name__


@pytest.fixture
def activations_page(tab, tmp_path):
    return open_explorers(tab, tmp_path, ACTIVATIONS)


def test_the_sentence_is_announced_and_a_slider_says_its_value(activations_page):
    box = activations_page.locator(".xp")
    assert box.locator(".xp-say").get_attribute("aria-live") == "polite"
    bias = box.get_by_role("slider", name="Bias of every unit")
    assert bias.get_attribute("aria-valuetext") == "0"
    bias.press("Home")
    assert bias.get_attribute("aria-valuetext") == "\N{MINUS SIGN}5"


def test_the_pointer_reads_the_nearest_value(activations_page):
    page = activations_page
    figure = page.locator("figure").first
    figure.get_by_role("img").hover(position={"x": 60, "y": 60})
    expect(figure.locator(".xp-tip")).to_have_text(
        re.compile("^pre-activation \N{MINUS SIGN}[67][.0-9]*: value 0, derivative 0$"))
    page.locator("h1").hover()
    expect(figure.locator(".xp-tip")).to_be_hidden()


# ---- the pointer ------------------------------------------------------------------------------
def test_a_click_on_a_label_chooses_what_it_names(activations_page):
    box, control = activations_page.locator(".xp"), ACTIVATIONS.controls[0]
    labels = box.get_by_role("group", name=control.label, exact=True).locator("label")
    _, _, other = next(walk(ACTIVATIONS))
    for setting in (other, ACTIVATIONS.defaults):
        value = setting[control.name]
        labels.filter(has_text=re.compile(f"^{value}$")).click(position={"x": 4, "y": 8})
        assert differences(box, ACTIVATIONS, setting) == []


# Each drag: its view, the values it leads to, and the key that then moves the control further.
DRAGGED = {
    "along curves": (load("softmax_scale"), 1, {"d": 1024}, "ArrowLeft", {"d": 256}),
    "a tile comes in": (load("online_softmax"), 0, {"tiles": 4}, "ArrowRight", {"tiles": 5}),
    "a place of both axes": (load("optimizer_paths"), 0, {"start": "upper left"}, "ArrowLeft",
                             {"start": "lower left"}),
    "two controls at once": (load("mix"), 0, {"across": 0, "down": 1}, "ArrowRight",
                             {"across": 0.25, "down": 1}),
}


@pytest.mark.parametrize("name", DRAGGED)
def test_a_point_that_is_dragged_moves_its_control_and_keys_go_on(tab, tmp_path, name):
    e, nth, chosen, key, then = DRAGGED[name]
    page = open_explorers(tab, tmp_path, e)
    box = page.locator(".xp")
    ball = page.locator("figure").nth(nth).locator(".xp-ball")
    expect(ball).to_be_visible()  # it has no box before it is drawn
    start = ball.bounding_box()
    # Choose these values by keys to see where the front end will draw the point.
    for control in e.controls:
        if control.name in chosen:
            move(box, control, control.default, chosen[control.name], static=True)
    end = ball.bounding_box()
    for control in e.controls:
        if control.name in chosen:
            move(box, control, chosen[control.name], control.default, static=True)
    assert ball.bounding_box() == start
    page.mouse.move(start["x"] + 7, start["y"] + 7)
    page.mouse.down()
    page.mouse.move(end["x"] + 4, end["y"] + 9, steps=5)
    page.mouse.up()
    assert ball.bounding_box() == end
    assert differences(box, e, e.setting(**chosen)) == []
    page.keyboard.press(key)
    assert differences(box, e, e.setting(**then)) == []


def test_a_finger_drags_the_point_and_scrolls_beside_it(tab, tmp_path):
    e = load("optimizer_paths")
    page = open_explorers(tab, tmp_path, e)
    root = page.locator("figure svg.xp-grips").first
    touch = {"pointerType": "touch", "pointerId": 5, "isPrimary": True, "bubbles": True}
    root.dispatch_event("pointerdown", {**touch, "clientX": 200, "clientY": 200})
    root.dispatch_event("pointermove", {**touch, "clientX": 300, "clientY": 300})
    assert differences(page.locator(".xp"), e, e.defaults) == []
    expect(root).to_have_css("touch-action", "pan-y")
    expect(root.locator(".xp-knob")).to_have_css("touch-action", "none")


@pytest.mark.parametrize(("height", "stay"), [(700, True), (240, False)])
def test_controls_stay_in_sight_where_there_is_room_for_them(tab, tmp_path, height, stay):
    page = open_explorers(tab, tmp_path, load("online_softmax"))
    page.set_viewport_size({"width": 900, "height": height})
    page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    slider = page.get_by_role("slider", name="Tiles seen")
    expect(slider).to_be_in_viewport() if stay else expect(slider).not_to_be_in_viewport()


# ---- front ends that are broken on purpose ----------------------------------------------------
BROKEN = {
    "arrays reversed": (features, "bytes[offset + place * count + i]",
                        "bytes[offset + place * count + count - 1 - i]"),
    "curve on another scale": (features, "X(xs[i]).toFixed(1), Y(ys[i]).toFixed(1)",
                               "X(xs[i]).toFixed(1), Y(ys[i] * 0.9).toFixed(1)"),
    "log drawn as linear": (features, "const place = log ? Math.log10 : (v) => v;",
                            "const place = (v) => v;"),
    "curves swapped": (features, "names.map((name) => frame.arrays[name].data)",
                       "names.map((name) => frame.arrays[name].data).reverse()"),
    "surface upside down": (SURFACE, "upwards ? rows - 1 - row : row", "row"),
    "colours inverted": (SURFACE, "colours[data[from + column]]",
                         "colours[255 - data[from + column]]"),
    "groups of points swapped": (SURFACE, "paths[groups[i]] += MARKS[groups[i]]",
                                 "paths[1 - groups[i]] += MARKS[1 - groups[i]]"),
    "points beside the axes": (SURFACE, "{ x: box.left, y: box.top, width, height, viewBox }",
                               "{ x: 0, y: box.top, width, height, viewBox }"),
    "steps of the way left out": (load("optimizer_paths"), "places.map((place)",
                                  "places.slice(1).map((place)"),
    "the frame does not follow": (load("optimizer_paths"), "if (!view.frame) return", "return"),
    "the mark stands still": (load("loss_curves"), "frame.arrays[view.mark].data[0]", "0"),
    "values and gradients swapped": (load("scalar_graph"), "values[i], grads[i])",
                                     "grads[i], values[i])"),
    "columns beside their place": (features, "X(xs[i] - 0.4 + ", "X(xs[i] - 0.2 + "),
    "columns not from zero": (features, "const zero = Y(0)", "const zero = Y(1)"),
    "a level elsewhere": (features, "Y(frame.arrays[name].data[0])", "Y(0)"),
    "the band stands still": (features, "...frame.arrays[view.band].data].map(X)",
                              "0, 1].map(X)"),
    "bars half as long": (features, "width: X(value)", "width: X(value / 2)"),
    "last control ignored": (features, "at[i] = position;",
                             "if (i < at.length - 1) at[i] = position;"),
    "drawn once only": (features, "last = frame;\n    redraw();\n",
                        "last = frame;\n    if (!root.dataset.drawn) redraw();\n"),
    "old sentence": (features, "    parts.sentence.textContent = frame.sentence;",
                     "    parts.sentence.textContent ||= frame.sentence;"),
}


# One fault each in reading data, placing, drawing, following a control, and the sentence.
PLAIN_TO_SEE = {"arrays reversed", "surface upside down", "bars half as long",
                "last control ignored", "old sentence"}


@pytest.mark.parametrize("name", mark_nightly(BROKEN, lambda name: name in PLAIN_TO_SEE))
def test_the_comparison_sees_a_broken_front_end(tab, tmp_path, name):
    e, good, bad = BROKEN[name]

    def damage(script):
        assert script.count(good) == 1, f"explorer.js no longer holds {good!r} once"
        return script.replace(good, bad)

    damaged = open_explorers(tab, tmp_path, e, mend=damage)
    assert next(stroll(damaged.locator(".xp"), e), None)


def test_a_script_older_than_the_page_says_so(tab, tmp_path):
    def forget(script):
        return script.replace("bars: barsView", "towers: barsView")

    old = open_explorers(tab, tmp_path, SURFACE, mend=forget)
    (tmp_path / "page.html").write_text(PAGE.format(features.static_html()))
    old.reload()
    expect(old.get_by_role("alert")).to_contain_text("does not know bars")


# ---- JupyterLab -------------------------------------------------------------------------------
LIVE = [ACTIVATIONS, SURFACE]  # one answers at once, one trains


def in_lab(test):
    """Run in make test if the front end has changed since its recorded visit, else at night."""
    return pytest.mark.nightly(test) if all(map(visited, LIVE)) else test


CELLS = [f"from dlsys_helpers.explorers.{e.name} import {e.name}\n{e.name}" for e in LIVE]


@pytest.fixture(scope="module")
def lab_page(browser, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab")
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in CELLS],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    nbformat.write(notebook, folder / "explorers.ipynb")
    with running_lab(folder, tmp_path_factory.mktemp("home")) as lab:
        opened = offline_page(browser, viewport={"width": 1300, "height": 2200})
        open_notebook(opened, lab, "explorers.ipynb")
        run_all(opened)
        drawn = opened.locator(".jp-OutputArea [data-drawn]")
        expect(drawn).to_have_count(len(LIVE), timeout=60_000)
        yield opened
        opened.close()


@in_lab
@pytest.mark.parametrize("nth", range(len(LIVE)), ids=lambda n: LIVE[n].name)
def test_in_jupyterlab_the_keyboard_moves_controls_and_the_kernel_answers(lab_page, nth):
    e, box = LIVE[nth], lab_page.locator(".jp-OutputArea .xp").nth(nth)
    assert differences(box, e, e.defaults) == []
    setting = e.defaults
    for control in e.controls:
        offered = control.offered(static=False)
        value = offered[offered.index(control.default) - 1]
        before, setting = setting, {**setting, control.name: value}
        move(box, control, before[control.name], value, static=False)
        expect(box.locator(".xp-stage")).not_to_have_attribute("aria-busy", "true", timeout=20_000)
        assert differences(box, e, setting) == []


@in_lab
def test_in_jupyterlab_controls_stay_in_sight(lab_page):
    whole = lab_page.viewport_size
    lab_page.set_viewport_size({"width": 1300, "height": 560})
    box = lab_page.locator(".jp-OutputArea .xp").first
    box.locator(".xp-say").scroll_into_view_if_needed()
    expect(box.locator(".xp-title")).not_to_be_in_viewport()
    expect(box.get_by_role("slider").first).to_be_in_viewport(ratio=1)
    lab_page.set_viewport_size(whole)


@in_lab
@pytest.mark.parametrize("theme", ["Dark", "Light"])
def test_in_jupyterlab_axe_finds_nothing_in_an_explorer(lab_page, theme):
    lab_command(lab_page, "apputils:change-theme", theme=f"JupyterLab {theme}")
    light = "true" if theme == "Light" else "false"
    expect(lab_page.locator("body")).to_have_attribute("data-jp-theme-light", light)
    focus(lab_page.locator(".jp-OutputArea .xp").first, LIVE[0].controls[0])
    assert violations(lab_page, context=".jp-OutputArea .xp") == []


@in_lab
def test_in_jupyterlab_the_picture_stands_in_once_the_kernel_has_gone(lab_page):
    first = lab_page.locator(".jp-OutputArea").first
    expect(first.locator("img").first).to_be_hidden()
    lab_command(lab_page, "docmanager:save")
    lab_page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.restartKernel()")
    lab_page.reload()
    expect(first.locator("img").first).to_be_visible(timeout=60_000)
    expect(first.get_by_text("Error displaying widget")).to_be_attached(timeout=60_000)
    expect(first.get_by_text("Error displaying widget")).to_be_hidden()

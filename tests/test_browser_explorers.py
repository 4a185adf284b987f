"""Explorers in a real browser: on a page opened from disk without network, and in JupyterLab."""

import re

import nbformat
import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from browser import lab_command, offline_page, open_browser, open_notebook, run_all, running_lab
from explorer_oracle import differences, focus, move, stroll
from playwright.sync_api import expect

from dlsys_helpers.explorers import (
    Bars,
    Choice,
    Heatmap,
    Lines,
    Slider,
    explorer,
    load,
    names,
    write_assets,
)

ALL = [load(name) for name in names()]
PAGE = """<!doctype html><html lang="en" data-theme="light"><head><meta charset="utf-8">
<title>Explorers</title><link rel="stylesheet" href="explorer.css">
<script defer src="explorer.js"></script>
<style>html[data-theme=dark] body {{ background: #14181e; color: #ced6dd }}</style></head>
<body><main><h1>Explorers</h1>{}</main></body></html>"""


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
    ],
)
def features(n, sign):
    """What the two real explorers do not use."""
    x = np.linspace(1, 1e4, n)
    y = x**2 if sign == "up" else 1 / x
    z = np.arange(6).reshape(2, 3) + (n > 5) + 2.0 * (sign == "down")
    return {"x": x, "up": y, "flat": 0 * x + 3, "up2": 2 + x / 1e4, "s": np.sqrt(x),
            "minus": -x / 99, "half": x / 200, "third": x / 300, "z": z,
            "b": [n / 50, 1.5]}, f"{n} points, {sign}."


@pytest.fixture(scope="module")
def browser():
    with open_browser() as opened:
        yield opened


def open_explorers(browser, folder, explorers, mend=lambda script: script):
    """A page from disk with these explorers; `mend` may change the front end's script."""
    script, _ = write_assets(folder)
    script.write_text(mend(script.read_text()))
    target = folder / "page.html"
    target.write_text(PAGE.format("".join(e.static_html() for e in explorers)))
    page = offline_page(browser, viewport={"width": 900, "height": 1000})
    page.goto(target.as_uri())
    expect(page.locator("[data-drawn]")).to_have_count(len(explorers))
    return page


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory):
    opened = open_explorers(browser, tmp_path_factory.mktemp("page"), [*ALL, features])
    yield opened
    opened.close()


def box_of(page, explorer):
    return page.locator(f"[data-explorer={explorer.name}]")


@pytest.mark.parametrize("e", [*ALL, features], ids=lambda e: e.name)
def test_every_control_by_keyboard_shows_what_python_computes(page, e):
    assert list(stroll(box_of(page, e), e)) == []
    assert page.refused == []
    assert page.problems == []


@pytest.mark.parametrize("e", ALL, ids=lambda e: e.name)
def test_settings_far_from_the_default_are_right_too(page, e):
    box, now = box_of(page, e), e.defaults
    for setting in [*list(e.grid().values())[7 :: len(e.grid()) // 4], e.defaults]:
        for control in e.controls:
            move(box, control, now[control.name], setting[control.name], static=True)
        now = setting
        assert differences(box, e, setting) == []


FOCUSED = """() => {
  const node = document.activeElement, group = node.closest("fieldset");
  return (group ? group.querySelector("legend") : node.labels[0]).textContent;
}"""


def test_tab_reaches_every_control_once(page):
    page.locator("h1").click()
    reached = []
    for _ in range(sum(len(e.controls) for e in [*ALL, features])):
        page.keyboard.press("Tab")
        reached.append(page.evaluate(FOCUSED))
    assert reached == [c.label for e in [*ALL, features] for c in e.controls]


def test_the_sentence_is_announced_and_a_slider_says_its_value(page):
    box = box_of(page, load("activations"))
    assert box.locator(".xp-say").get_attribute("aria-live") == "polite"
    bias = box.get_by_role("slider", name="Bias of every unit")
    assert bias.get_attribute("aria-valuetext") == "0"
    bias.press("Home")
    assert bias.get_attribute("aria-valuetext") == "\N{MINUS SIGN}5"
    move(box, load("activations").controls[2], -5, 0, static=True)


def test_a_narrow_page_redraws_to_the_scale_of_its_labels(page):
    page.set_viewport_size({"width": 380, "height": 800})
    try:
        for e in ALL:
            box = box_of(page, e)
            expect(box.locator(".xp-canvas svg").first).to_have_attribute(
                "viewBox", re.compile(r"^0 0 3\d\d "))
            assert differences(box, e, e.defaults) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 380
    finally:
        page.set_viewport_size({"width": 900, "height": 1000})


def test_the_pointer_reads_the_nearest_value(page):
    box = box_of(page, load("activations"))
    figure = box.locator("figure").first
    figure.scroll_into_view_if_needed()
    figure.locator("svg").hover(position={"x": 60, "y": 60})
    expect(figure.locator(".xp-tip")).to_have_text(
        re.compile("^pre-activation \N{MINUS SIGN}[67][.0-9]*: value 0, derivative 0$"))
    page.locator("h1").hover()
    expect(figure.locator(".xp-tip")).to_be_hidden()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(page, theme):
    page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
    card = page.locator(".xp").first.evaluate("node => getComputedStyle(node).backgroundColor")
    assert card == {"light": "rgb(251, 252, 254)", "dark": "rgb(24, 28, 37)"}[theme]
    found = Axe().run(page).response["violations"]
    assert [(v["id"], v["nodes"][0]["html"][:100]) for v in found] == []


# ---- front ends that are broken on purpose ----------------------------------------------------
SURFACE = load("decision_surface")
BROKEN = {
    "arrays reversed": (features, "bytes[offset + place * count + i]",
                        "bytes[offset + place * count + count - 1 - i]"),
    "curve on another scale": (features, "Y(ys[i]).toFixed(1)", "Y(ys[i] * 0.9).toFixed(1)"),
    "log drawn as linear": (features, "const place = log ? Math.log10 : (v) => v;",
                            "const place = (v) => v;"),
    "curves swapped": (features, "names.map((name) => frame.arrays[name].data)",
                       "names.map((name) => frame.arrays[name].data).reverse()"),
    "surface upside down": (SURFACE, "upwards ? rows - 1 - row : row", "row"),
    "colours inverted": (SURFACE, "colours[data[from + column]]",
                         "colours[255 - data[from + column]]"),
    "groups of points swapped": (SURFACE, "paths[groups[i]] += MARKS[groups[i]]",
                                 "paths[1 - groups[i]] += MARKS[1 - groups[i]]"),
    "bars half as long": (features, "width: X(value)", "width: X(value / 2)"),
    "last control ignored": (features, "at[i] = position;",
                             "if (i < at.length - 1) at[i] = position;"),
    "drawn once only": (features, "    redraw();\n", "    if (!root.dataset.drawn) redraw();\n"),
    "old sentence": (features, "    parts.sentence.textContent = frame.sentence;",
                     "    parts.sentence.textContent ||= frame.sentence;"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_comparison_sees_a_broken_front_end(browser, tmp_path, name):
    e, good, bad = BROKEN[name]

    def damage(script):
        assert script.count(good) == 1, f"explorer.js no longer holds {good!r} once"
        return script.replace(good, bad)

    damaged = open_explorers(browser, tmp_path, [e], damage)
    seen = next(stroll(box_of(damaged, e), e), None)
    damaged.close()
    assert seen


def test_a_script_older_than_the_page_says_so(browser, tmp_path):
    old = open_explorers(browser, tmp_path, [])
    fragment = features.static_html().replace('"kind": "bars"', '"kind": "towers"')
    (tmp_path / "page.html").write_text(PAGE.format(fragment))
    old.reload()
    expect(old.locator(".xp")).to_contain_text("does not know towers")
    old.close()


# ---- JupyterLab -------------------------------------------------------------------------------
CELLS = [f"from dlsys_helpers.explorers.{e.name} import {e.name}\n{e.name}" for e in ALL]


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
        expect(drawn).to_have_count(len(ALL), timeout=60_000)
        yield opened
        opened.close()


@pytest.mark.parametrize("nth", range(len(ALL)), ids=lambda n: ALL[n].name)
def test_in_jupyterlab_the_keyboard_moves_controls_and_the_kernel_answers(lab_page, nth):
    e, box = ALL[nth], lab_page.locator(".jp-OutputArea .xp").nth(nth)
    assert differences(box, e, e.defaults) == []
    setting = e.defaults
    for control in e.controls:
        offered = control.offered(static=False)
        value = offered[offered.index(control.default) - 1]
        before, setting = setting, {**setting, control.name: value}
        move(box, control, before[control.name], value, static=False)
        expect(box.locator(".xp-say")).to_have_text(e(**setting)[1], timeout=20_000)
        assert differences(box, e, setting) == []
    expect(box.locator(".xp-stage")).not_to_have_attribute("aria-busy", "true")


@pytest.mark.parametrize("theme", ["Dark", "Light"])
def test_in_jupyterlab_axe_finds_nothing_in_an_explorer(lab_page, theme):
    lab_command(lab_page, "apputils:change-theme", theme=f"JupyterLab {theme}")
    scheme = f"body[data-jp-theme-light={'true' if theme == 'Light' else 'false'}]"
    lab_page.wait_for_selector(scheme)
    focus(lab_page.locator(".jp-OutputArea .xp").first, ALL[0].controls[0])
    found = Axe().run(lab_page, context=".jp-OutputArea .xp").response["violations"]
    assert [(v["id"], v["nodes"][0]["html"][:100]) for v in found] == []

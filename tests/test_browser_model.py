"""The model in a real browser: its numbers against torch's, and everything a reader can do."""

import base64
import json
import re

import nbformat
import pytest
import torch
from browser import lab_command, offline_page, open_notebook, run_all, running_lab, violations
from playwright.sync_api import expect
from torch.nn import functional as F

from dlsys_helpers import catalog, guesses
from dlsys_helpers.explorers import write_assets
from dlsys_model import network, page, report, text
from dlsys_model.network import Network, Shape
from dlsys_model.pack import GROUP, PackError, in_bits, pack, unpack
from dlsys_model.parts import Parts
from tools.nightly import mark_nightly
from tools.own_model import PACKED, RECORD, fingerprint

ENGINE = (page.HERE / "engine.js").read_text("utf-8")
PROMPTS, LENGTH = 25, 40

# The engine alone on a page.
LOAD = f"""base64 => {{
  {ENGINE}
  Object.assign(window, {{ unpack, inBits, emptyCache, forward, write, encode, seeded, draw }});
  window.model = unpack(Uint8Array.from(atob(base64), c => c.charCodeAt(0)));
}}"""
# The largest gap to torch's logits, which come as bytes: over single letters, and for the last
# letter if the page gets all at once.
GAPS = """([rows, base64, few]) => {
  const expected = new Float32Array(Uint8Array.from(atob(base64), c => c.charCodeAt(0)).buffer);
  const used = few ? inBits(model, few) : model, V = used.letters.length;
  const gap = (logits, at) =>
    Math.max(...logits.map((z, i) => Math.abs(z - expected[at * V + i])));
  return rows.map((ids, row) => {
    const cache = emptyCache(used), first = row * ids.length, last = first + ids.length - 1;
    const each = ids.map((id, i) => gap(forward(used, [id], cache).logits, first + i));
    return [Math.max(...each), gap(forward(used, ids, emptyCache(used)).logits, last)];
  });
}"""
WRITTEN = """([prompt, count, options]) => { const ids = [];
  for (const { id } of write(model, prompt, options)) if (ids.push(id) === count) return ids; }"""


def a_network(state, header):
    made = Network(Shape(**header["shape"]), Parts())
    made.load_state_dict(state)
    return made.eval()


@pytest.fixture(scope="module")
def trained():
    """The network with the weights of the website, as the page has them."""
    header, state = unpack(PACKED.read_bytes())
    return a_network(state, header)


@pytest.fixture(scope="module")
def prose():
    return text.prose(Parts().class_numbers)


@pytest.fixture(scope="module")
def engine(browser):
    tab = offline_page(browser)
    tab.goto("about:blank")
    tab.evaluate(LOAD, base64.b64encode(PACKED.read_bytes()).decode())
    yield tab
    assert tab.problems == []
    tab.close()


@pytest.fixture(scope="module")
def prompts(prose):
    """Prompts drawn from the held-out text: (25, 40)."""
    g = torch.Generator().manual_seed(0)
    return text.batch(prose.valid, g, PROMPTS, LENGTH)[0]


def logits(model, ids):
    with torch.no_grad():
        return model(ids)


def gaps(engine, ids, expected, bits=None):
    """The page's error for each row of ids (n, T), letter by letter and at once: (n, 2)."""
    base64_of = base64.b64encode(expected.numpy().tobytes()).decode()
    return torch.tensor(engine.evaluate(GAPS, [ids.tolist(), base64_of, bits]))


# ---- numbers
def test_logits_are_those_of_torch_letter_by_letter_and_at_once(engine, trained, prompts):
    expected = logits(trained, prompts)
    assert expected.abs().max() > 5  # so a gap of 1e-4 means something
    assert gaps(engine, prompts, expected).max() < 1e-4


@pytest.mark.parametrize("bits", [4, 3])
def test_in_fewer_bits_it_has_the_grid_of_torch(engine, trained, prompts, bits):
    header, state = unpack(PACKED.read_bytes())
    expected = logits(a_network(in_bits(state, bits), header), prompts[:10])
    assert (expected - logits(trained, prompts[:10])).abs().max() > 0.05
    found = gaps(engine, prompts[:10], expected, bits)
    # A weight halfway between two levels may round either way.
    assert found.max() < 1e-2
    assert found.median() < 1e-3


def unmasked(model, ids):
    """Logits at the last of ids (1, T), by torch's own layers, if each position sees all others."""
    x, place = model.emb(ids), torch.arange(ids.shape[1])
    for block in model.blocks:
        q, k, v = (z.unflatten(-1, (block.heads, -1)).transpose(1, 2)
                   for z in block.qkv(block.norm1(x)).chunk(3, -1))
        seen = F.scaled_dot_product_attention(network.rotate(q, place), network.rotate(k, place), v)
        x = x + block.out(seen.transpose(1, 2).flatten(2))
        x = x + block.mlp(block.norm2(x))
    return model.head(model.norm(x))[0, -1]


def test_without_the_mask_each_place_sees_all(engine, trained, prompts):
    for row in prompts[:5]:
        with torch.no_grad():
            expected = unmasked(trained, row[None])
        mine = engine.evaluate("ids => [...forward(model, ids, emptyCache(model), false).logits]",
                               row.tolist())
        assert (torch.tensor(mine) - expected).abs().max() < 1e-4
        assert (expected - logits(trained, row[None])[0, -1]).abs().max() > 0.01


BEST = {"temperature": 0, "seed": 1, "cached": True, "masked": True}


@pytest.mark.parametrize("cached", [True, False])
def test_it_writes_what_torch_writes_past_its_window(engine, trained, prose, cached):
    """Greedy writing, far enough that the cache has dropped positions."""
    length, count = trained.shape.length, 12
    prompt = prose.valid[:length - 4]
    expected = list(network.write(trained, prompt, count, 0, cached))
    mine = engine.evaluate(WRITTEN, [prompt.tolist(), count, BEST | {"cached": cached}])
    assert len(prompt) + count > length
    assert mine == expected


def test_the_same_seed_writes_the_same_text_and_another_another(engine, prompts):
    prompt = prompts[0].tolist()
    first, again, other = (engine.evaluate(WRITTEN, [prompt, 60, BEST | {
        "temperature": 0.7, "seed": seed}]) for seed in (1, 1, 2))
    assert first == again != other


def test_letters_are_drawn_as_often_as_the_softmax_says(engine):
    counts = engine.evaluate("""() => { const random = seeded(3), counts = [0, 0, 0];
      for (let i = 0; i < 20000; i++) counts[draw(Float32Array.of(0, 1, 2), 0.5, random)]++;
      return counts; }""")
    expected = torch.tensor([0.0, 1, 2]).div(0.5).softmax(0)
    assert (torch.tensor(counts) / 20000 - expected).abs().max() < 0.01


def test_six_hundred_letters_stay_well_formed(engine, trained, prose):
    """To torch, what it wrote after the 300th letter is as likely as what it wrote before."""
    prompt = prose.encode("The gradient of the loss ").tolist()
    early, late = [], []
    for seed in range(4):
        ids = torch.tensor(prompt + engine.evaluate(WRITTEN, [prompt, 600, BEST | {
            "temperature": 0.7, "seed": seed}]))
        # Windows of equal length, so that each letter follows 100 others.
        for found, begin in ((early, 100), (early, 200), (late, 400), (late, 500)):
            row = ids[begin - 100:begin + 101][None]
            losses = F.cross_entropy(logits(trained, row[:, :-1])[0, 100:], row[0, 101:])
            found.append(losses.item())
    assert sum(late) / len(late) < sum(early) / len(early) + 0.15
    assert max(late) < 1.6


# ---- the record
def test_the_record_says_what_the_packed_weights_are(trained, prose):
    record, header = json.loads(RECORD.read_text("utf-8")), unpack(PACKED.read_bytes())[0]
    assert PACKED.stat().st_size == record["bytes"]
    assert len(page.weights_script(PACKED.read_bytes())) < 700_000
    assert record["text"] == fingerprint(prose)
    assert header["letters"] == prose.letters
    assert header["validation"] == record["validation"]
    assert record["validation"]["8"] < 1.3
    x, y = text.rows(prose.valid, trained.shape.length)
    loss = F.cross_entropy(logits(trained, x).flatten(0, 1), y.flatten()).item()
    assert loss == pytest.approx(record["validation"]["8"], abs=2e-3)
    assert len(record["parts"]) >= 12
    assert record["curve"][-1][0] == record["plan"]["until"]


def test_every_box_of_the_drawing_leads_to_a_trap():
    parts = [*page.BEFORE, *page.BLOCK, *page.BEHIND, *page.TRAINED, *page.KEPT]
    assert {part.trap for part in parts} <= {trap.id for trap in catalog.traps()}
    drawn = page.drawing(4, "traps/")
    assert drawn.count("<a ") == len(parts) >= 15
    assert 'href="traps/08-10.html"' in drawn
    assert "<a " not in page.drawing(4)


# ---- the panel, opened from disk under a policy without inline script and eval
POLICY = "default-src 'none'; script-src file:; style-src file:"
PAGE = """<!doctype html><html lang="en" data-theme="light"><head><meta charset="utf-8">
<title>Model</title><meta http-equiv="Content-Security-Policy" content="{policy}">
<link rel="stylesheet" href="explorer.css"><link rel="stylesheet" href="model.css">
<link rel="stylesheet" href="theme.css"><script defer src="model.js"></script></head>
<body><main><h1>Model</h1>{piece}</main></body></html>"""
THEME = "html[data-theme=dark] body { background: #14181e; color: #ced6dd }"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("model")
    page.write_assets(made)
    write_assets(made)
    (made / "theme.css").write_text(THEME)
    (made / "weights.js").write_text(page.weights_script(PACKED.read_bytes()))
    return made


def open_panel(browser, folder, weights="weights.js", starts=False, **options):
    name = f"{weights}-{starts}.html"
    (folder / name).write_text(PAGE.format(
        policy=POLICY, piece=page.piece(4, weights, "traps/", starts=starts)))
    tab = offline_page(browser, **{"viewport": {"width": 900, "height": 1000}, **options})
    tab.goto((folder / name).as_uri())
    return tab


@pytest.fixture(scope="module")
def panel(browser, folder):
    tab = open_panel(browser, folder)
    yield tab
    assert tab.problems == []
    assert tab.refused == []
    tab.close()


def choose(tab, group, option):
    box = tab.get_by_role("group", name=group, exact=True)
    box.get_by_text(option, exact=True).click()
    expect(box.get_by_role("radio", name=option, exact=True)).to_be_checked()


def written(tab):
    """Press the button, wait until the page has finished writing, and return the text."""
    tab.evaluate("document.querySelector('.lm').removeAttribute('data-written')")
    tab.get_by_role("button", name="Write").click()
    tab.wait_for_selector("[data-written]", timeout=120_000)
    return tab.locator(".lm-page").text_content()


def test_it_writes_by_keyboard_and_says_how_fast_and_where_it_looked(panel):
    box = panel.get_by_label("Begin with")
    box.focus()
    panel.keyboard.press("Control+A")
    panel.keyboard.type("A norm ")
    panel.keyboard.press("Enter")
    panel.wait_for_selector("[data-written]", timeout=120_000)
    shown = panel.locator(".lm-page").text_content()
    assert shown.startswith("A norm ")
    assert len(shown) == len("A norm ") + 600
    said = panel.locator(".xp-say").inner_text()
    assert re.search(r"600 letters, [\d,]+ per second with the cache\. In 8 bits its weights take "
                     r"51\d\skB, and its loss on held-out text is 1\.\d\d nats", said)
    assert re.search(r"in block 4 looks most at .+ back: \d+\s% of the attention\.", said)
    marks = panel.locator(".lm-seen").count()
    assert 1 < marks < 258
    choose(panel, "Attention in block", "1")
    expect(panel.locator(".xp-say")).to_contain_text("in block 1 looks most")
    assert panel.locator(".lm-page").text_content() == shown


def test_the_switches_change_what_it_writes_and_the_mask_takes_the_cache_along(panel):
    first = written(panel)
    assert written(panel) == first
    choose(panel, "Bits per weight", "3")
    assert written(panel) != first
    expect(panel.locator(".xp-say")).to_contain_text("In 3 bits its weights take")
    choose(panel, "Bits per weight", "8")
    panel.get_by_label("Seed").fill("2")
    assert written(panel) != first
    panel.get_by_label("Seed").fill("1")
    cache = panel.get_by_role("group", name="Cache")
    choose(panel, "Causal mask", "off")
    assert cache.evaluate("node => node.disabled")
    panel.get_by_role("button", name="Write").click()
    panel.get_by_role("button", name="Stop").click()
    expect(panel.locator(".xp-say")).to_contain_text("per second without the mask", timeout=30_000)
    choose(panel, "Causal mask", "on")
    assert not cache.evaluate("node => node.disabled")
    choose(panel, "Cache", "off")
    panel.get_by_role("button", name="Write").click()
    panel.get_by_role("button", name="Stop").click()
    expect(panel.locator(".xp-say")).to_contain_text("per second without the cache", timeout=30_000)
    choose(panel, "Cache", "on")
    assert written(panel) == first


@pytest.mark.parametrize(("prompt", "begins", "said"), [
    ("Ä loss ", " loss ", "trained without them: Ä."),
    pytest.param("ÄÖ", "\n", "trained without them: Ä Ö.", marks=pytest.mark.nightly),
    pytest.param("", "\n", "600 letters", marks=pytest.mark.nightly)])
def test_letters_that_it_does_not_know_are_left_out_and_named(panel, prompt, begins, said):
    panel.get_by_label("Begin with").fill(prompt)
    assert written(panel).startswith(begins)
    expect(panel.locator(".xp-say")).to_contain_text(said)


def test_axe_finds_nothing_in_either_theme_and_a_narrow_phone_scrolls_one_way(panel):
    written(panel)
    assert violations(panel, options={"preload": False}) == []
    panel.evaluate("document.documentElement.dataset.theme = 'dark'")
    contrast = {"runOnly": ["color-contrast"], "preload": False}
    assert violations(panel, options=contrast) == []
    panel.evaluate("document.documentElement.dataset.theme = 'light'")
    panel.set_viewport_size({"width": 320, "height": 700})
    assert panel.evaluate("document.documentElement.scrollWidth") <= 320
    panel.set_viewport_size({"width": 900, "height": 1000})


def test_on_the_home_page_it_begins_by_itself_and_stops_when_asked(browser, folder):
    tab = open_panel(browser, folder, starts=True)
    expect(tab.locator(".lm-page")).to_have_text(re.compile("The gradient.{40,}", re.DOTALL))
    tab.get_by_role("button", name="Stop").click()
    expect(tab.locator(".xp-say")).to_contain_text("letters, ")
    assert tab.problems == []
    tab.close()


def test_where_motion_is_unwelcome_it_waits_for_the_button(browser, folder):
    tab = open_panel(browser, folder, starts=True, reduced_motion="reduce")
    expect(tab.get_by_role("button", name="Write")).to_be_visible()
    tab.wait_for_timeout(300)
    assert tab.locator(".lm-page").text_content() == ""
    tab.close()


def test_weights_that_do_not_load_are_said(browser, folder):
    tab = open_panel(browser, folder, weights="nowhere.js")
    expect(tab.get_by_role("alert")).to_have_text("The weights did not load. Reload the page.")
    tab.close()


def test_weights_are_asked_for_only_near_the_screen(browser, folder):
    (folder / "below.html").write_text(PAGE.format(
        policy=POLICY + "; style-src file: 'unsafe-inline'", piece="").replace(
        "</main>", f'<div class="far"></div>{page.piece(4, "weights.js")}</main>'))
    (folder / "theme.css").write_text(f"{THEME} .far {{ height: 3000px }}")
    tab = offline_page(browser)
    tab.goto((folder / "below.html").as_uri())
    tab.wait_for_timeout(200)
    assert tab.locator("script[src='weights.js']").count() == 0
    tab.locator(".lm").scroll_into_view_if_needed()
    expect(tab.get_by_role("button", name="Write")).to_be_visible()
    assert tab.locator("script[src='weights.js']").count() == 1
    tab.close()


# ---- in a notebook
SMALL = Shape(letters=4, width=32, layers=2, heads=2, length=16)
CELL = """import torch
from dlsys_model.network import Network, Shape
from dlsys_model.page import show
from dlsys_model.parts import Parts
torch.manual_seed(0)
one = show(Network(Shape(letters=4, width=32, layers=2, heads=2, length=16), Parts()), "abc ")
display(one)
one"""


def test_a_model_shown_says_in_plain_text_what_it_is_and_refuses_other_letters():
    torch.manual_seed(0)
    model = Network(SMALL, Parts())
    shown = page.show(model, "abc ")
    assert repr(shown).startswith(f"A model in {len(shown.packed) / 1000:.0f} kB")
    assert "http" not in shown._repr_html_()
    with pytest.raises(PackError, match="letters: got 3 different ones"):
        page.show(model, "abc")


@pytest.mark.nightly  # the same page, in the frame of a cell
def test_in_jupyterlab_it_writes_from_the_stored_cell_without_a_kernel(browser, tmp_path):
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(CELL)],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    nbformat.write(notebook, tmp_path / "shown.ipynb")
    with running_lab(tmp_path, tmp_path.parent / "home") as lab:
        tab = offline_page(browser, viewport={"width": 1200, "height": 1400})
        open_notebook(tab, lab, "shown.ipynb")
        run_all(tab)
        buttons = tab.get_by_role("button", name="Write")
        expect(buttons).to_have_count(2, timeout=60_000)
        lab_command(tab, "docmanager:save")
        lab_command(tab, "kernelmenu:shutdown")
        tab.reload()
        expect(buttons).to_have_count(2, timeout=60_000)
        prompt = tab.get_by_label("Begin with").last
        prompt.fill("abc")
        prompt.press("Enter")
        tab.wait_for_selector("[data-written]", timeout=60_000)
        assert len(tab.locator(".lm-page").last.text_content()) == 603
        assert violations(tab, context=".jp-OutputArea .lm") == []
        assert tab.problems == []
        tab.close()


def test_other_sizes_are_read_too_and_letters_of_two_units(engine):
    """It also reads float16 scales below the normal range."""
    torch.manual_seed(1)
    model = Network(SMALL, Parts()).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * (1e-3 if weight.dim() > 1 else 0.5))
    packed = pack(model.state_dict(), SMALL._asdict(), "ab\N{GRINNING FACE} ")
    model.load_state_dict(unpack(packed)[1])
    mine = engine.evaluate(
        "([base64, text]) => { const small = unpack(Uint8Array.from(atob(base64), "
        "c => c.charCodeAt(0))); const ids = encode(small, text);"
        "return [ids, [...forward(small, ids, emptyCache(small)).logits]]; }",
        [base64.b64encode(packed).decode(), "a \N{GRINNING FACE}b"])
    assert mine[0] == [0, 3, 2, 1]
    expected = logits(model, torch.tensor([mine[0]]))[0, -1]
    torch.testing.assert_close(torch.tensor(mine[1]), expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("bits", mark_nightly([8, 4, 3], lambda bits: bits == 4))
def test_what_it_says_of_its_size_is_what_it_keeps(panel, bits):
    """Each group of the stored 8 bits has a float16 scale; each group made here, a float32 one."""
    _, state = unpack(PACKED.read_bytes())
    matrices = sum(w.numel() for w in state.values() if w.dim() == 2)
    vectors = sum(w.numel() for w in state.values() if w.dim() == 1)
    choose(panel, "Bits per weight", str(bits))
    written(panel)
    size = matrices * bits / 8 + matrices / GROUP * (3 if bits == 8 else 5) + 4 * vectors
    expect(panel.locator(".xp-say")).to_contain_text(
        f"In {bits} bits its weights take {round(size / 1000)}\N{NO-BREAK SPACE}kB")


def test_a_clock_that_stands_still_gives_no_speed(browser, folder):
    tab = open_panel(browser, folder)
    tab.evaluate("performance.now = () => 0")
    written(tab)
    expect(tab.locator(".xp-say")).to_contain_text("600 letters with the cache.")
    tab.close()


# ---- the report

def test_a_report_prints_on_one_page(browser, tmp_path, monkeypatch):
    """The report has as many guesses and sizes as the notebook."""
    monkeypatch.setenv("DLSYS_PROGRESS", str(tmp_path))
    monkeypatch.setattr(guesses, "measured_questions", lambda _: 16 * [guesses.MeasuredQuestion(
        "How many bytes does each rank hand over in a step, for each weight of the model?",
        "4 bytes a weight", "4 bytes a weight")])
    log = [{"step": 40, "loss": 3.0, "valid": 3.1}, {"step": 1000, "loss": 2.0, "valid": 2.2}]
    report.write(Parts(), log, "a sample of a line or two, " * 5,
                 {f"model {n}": (1, 2.0) for n in range(7)})
    tab = offline_page(browser)
    tab.goto((tmp_path / report.FILE).as_uri())
    printed = tab.pdf(prefer_css_page_size=True)
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 1
    tab.close()

"""Drawings show their data, their texts do not overlap, and bad input is refused."""

import io
import itertools

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.text import Text

import dlsys_helpers
from dlsys_helpers import drawing_canvas as canvas
from dlsys_helpers import plots
from tools import fingerprints, lessons

SAID = {"title": "The finding", "alt": "What is seen."}
CAUSAL = np.tril(np.ones((8, 8)))
NF4 = [-1, -.696, -.525, -.395, -.284, -.185, -.091, 0, .08, .161, .246, .338, .441, .563, .723, 1]
ZERO = {"DDP": {"weights": 15, "gradients": 15, "Adam": 90},
        "ZeRO-3": {"weights": 1.9, "gradients": 1.9, "Adam": 11.2}}
LANES = {"compute": [(0, 4, "forward"), (4, 10, "backward"), (15, 16, "step")],
         "network": [(5, 6, "all-reduce 1"), (10, 15, "all-reduce 2")]}
RING = {"before": [[f"{c}{r}" for c in "abcd"] for r in range(4)],
        "after": [["a", "", "", ""], ["", "b", "", ""], ["", "", "c", ""], ["", "", "", "d"]]}
NORMS = {"post-norm": ["x", "attention", "+", "norm"], "pre-norm": ["x", "norm", "attention", "+"]}
LORA = {"LoRA": ["x", ("W, frozen\n16 777 216", "A\n32 768"), ("", "B\n32 768"), "+", "y"]}
NODES = {"x": "2.0", "w": "3.0, grad 0", "h": "6.0", "loss": "12.0"}
EDGES = [("x", "h"), ("w", "h"), ("h", "loss"), ("w", "loss")]
FORMATS = {"float16": [(6e-8, 6.1e-5, "subnormal"), (6.1e-5, 65504, "normal")],
           "bfloat16": [(1.2e-38, 3.4e38, "normal")], "gradients": [(1e-9, 2e-5, "lost"),
                                                                   (3e-4, "median")]}
PRICES = {**dict.fromkeys(range(1, 8), 0.002), 8: 2.82}
EXAMPLES = {
    "masks": ("draw_grids", [{"no mask": CAUSAL ** 0, "causal": CAUSAL, "packed: 3 + 5": CAUSAL}],
              {"marks": {"no mask": np.eye(8, k=1)}, "legend": "the token that is asked for",
               "captions": {"no mask": "row t sees its answer, t + 1"}, "rows": "asks",
               "columns": "is looked at"}),
    "weights": ("draw_grids", [{"weights": np.eye(3) / 2, "after": np.eye(3)}],
                {"values": True, "row_names": ["the", "cat", "sat"], "legend": "ahead",
                 "column_names": ["the", "cat", "sat"], "marks": {"after": np.eye(3, k=1)}}),
    "memory": ("draw_boxes", [ZERO], {"limit": 80, "limit_name": "one H100"}),
    "overlap": ("draw_lanes", [LANES], {"marks": ["all-reduce 2"],
                                        "moments": {"gradients are there": 10, "end": 16}}),
    "ring": ("draw_ranks", [RING], {"arrows": {"before": [(0, 1, 0), (3, 0, 3)]},
                                    "marks": {"after": [(2, 2)]}}),
    "norms": ("draw_blocks", [NORMS], {"bypass": {"post-norm": [(0, 2)], "pre-norm": [(0, 3)]},
                                       "marks": {"post-norm": ["norm"]},
                                       "captions": {"pre-norm": "the path is free"}}),
    "LoRA": ("draw_blocks", [LORA], {"bypass": {"LoRA": [(4, 0)]}}),
    "graph": ("draw_tree", [NODES, EDGES], {"cuts": [("h", "loss")], "marks": ["w"]}),
    "there and back": ("draw_backward", [
        {"w": "3\ngradient -14", "x": "2", "b": "0.5", "w x + b": "6.5", "y": "10", "e": "-3.5"},
        [("w", "w x + b"), ("x", "w x + b"), ("b", "w x + b"), ("w x + b", "e"), ("y", "e")],
        {("w", "w x + b"): "times x = 2", ("x", "w x + b"): "times w = 3",
         ("b", "w x + b"): "times 1", ("w x + b", "e"): "times 1"}], {}),
    "formats": ("draw_line", [FORMATS], {"log": True, "marks": ["lost"],
                                         "moments": {"underflow": 6e-8, "65 504": 65504}}),
    "levels": ("draw_line", [{"int4": [k / 7 for k in range(-8, 8)], "NF4": NF4}], {}),
    "histogram": ("draw_histogram", [np.arange(100).reshape(4, 25) / 50 - 1],
                  {"grids": {"NF4": NF4}, "unit": "weight", "bins": 10}),
    "columns": ("plot_columns", [PRICES], {
        "xlabel": "place", "ylabel": "nats", "reference": (2.77, "ln 16: nobody pays less"),
        "marks": range(1, 8), "form": ".2f"}),
}


@pytest.fixture
def draw(monkeypatch):
    """Call a drawing function by name and return its figure."""
    def call(name, *args, **given):
        figures = []
        monkeypatch.setattr(plots, "show", lambda figure, alt: figures.append((figure, alt)))
        getattr(dlsys_helpers, name)(*args, **{**SAID, **given})
        (figure, alt), = figures
        assert alt == {**SAID, **given}["alt"]
        return figure
    return call


@pytest.fixture
def example(draw):
    return lambda name: draw(EXAMPLES[name][0], *EXAMPLES[name][1], **EXAMPLES[name][2])


def patches(figure, label):
    return [p for p in figure.axes[0].patches if p.get_label() == label]


def texts(figure):
    return [t.get_text() for t in figure.axes[0].texts]


def extent(patch):
    """The left, right, top and bottom in inches."""
    box = patch.get_path().get_extents()
    if hasattr(patch, "get_patch_transform"):
        box = patch.get_patch_transform().transform_path(patch.get_path()).get_extents()
    return box.x0, box.x1, min(box.y0, box.y1), max(box.y0, box.y1)


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_text_lies_on_another_or_outside_and_all_are_large_enough(name, example):
    figure = example(name)
    figure.canvas.draw()
    written = [t for t in figure.findobj(Text) if t.get_text()
               and t in figure.axes[0].texts]
    boxes = [t.get_window_extent() for t in written]
    for (one, a), (two, b) in itertools.combinations(zip(written, boxes, strict=True), 2):
        across = min(a.x1, b.x1) - max(a.x0, b.x0)
        down = min(a.y1, b.y1) - max(a.y0, b.y0)
        assert across <= 0 or down <= 1, (one.get_text(), two.get_text())  # in pixels
    for text, box in zip(written, boxes, strict=True):
        assert text.get_fontsize() >= 10
        assert 0 <= box.x0 < box.x1 <= figure.bbox.width + 1, text.get_text()
        assert 0 <= box.y0 < box.y1 <= figure.bbox.height + 1, text.get_text()
    assert figure.get_figwidth() == canvas.WIDTH


def test_cells_are_the_matrix_and_marks_are_crossed(example):
    figure = example("masks")
    cells = patches(figure, "cell")
    filled = [c for c in cells if c.get_facecolor()[3] == 1]
    assert (len(cells), len(filled)) == (3 * 64 - 7, 64 - 7 + 36 + 36)
    assert len(patches(figure, "marked")) == 7
    assert len(patches(figure, "cross")) == 2 * (7 + 1)  # and in the legend


def test_a_tensor_is_drawn_whatever_it_is(draw):
    half = torch.full((2, 2), 0.5, dtype=torch.bfloat16, requires_grad=True)
    figure = draw("draw_grids", {"a": half}, values=True, marks={"a": torch.eye(2).bool()})
    assert texts(figure).count(".50") == 4
    assert len(patches(figure, "marked")) == 2


def test_numbers_in_cells_are_the_weights_and_a_mark_has_a_thick_edge(example):
    figure = example("weights")
    assert texts(figure).count(".50") == texts(figure).count("1") == 3
    assert texts(figure).count("0") == 2  # marked and empty: the number is shown
    assert all(m.get_linewidth() > 2 for m in patches(figure, "marked"))


def test_boxes_are_to_scale_and_a_sum_over_the_limit_says_so(example):
    figure = example("memory")
    heights = [b - t for _, _, t, b in map(extent, patches(figure, "part"))]
    sizes = [size for parts in ZERO.values() for size in parts.values()]
    assert np.divide(heights, sizes) == pytest.approx([heights[0] / 15] * 6, rel=1e-6)
    assert "120 GB ✗" in texts(figure)
    assert "15 GB" in texts(figure)
    floor = extent(patches(figure, "part")[0])[3]
    limit = patches(figure, "limit")[0].get_path().vertices[0][1]
    assert (floor - limit) / heights[0] == pytest.approx(80 / 15)
    assert {"Adam 90", "weights 15", "weights 1.9"} <= {*texts(figure)}


def test_stacks_that_do_not_fit_side_by_side_stand_in_two_rows_of_one_scale(draw):
    figure = draw("draw_boxes", {f"plan {k}": {"activations": 4, "optimizer": 2} for k in range(6)})
    places = [extent(p) for p in patches(figure, "part")]
    assert len({round(bottom, 3) for *_, bottom in places[::2]}) == 2
    heights = np.array([bottom - top for *_, top, bottom in places])
    assert heights / heights[1] == pytest.approx([2, 1] * 6)


def test_spans_are_to_scale_and_what_does_not_fit_is_in_the_legend(example):
    figure = example("overlap")
    spans = [extent(p) for p in patches(figure, "span")]
    wide = [right - left for left, right, *_ in spans]
    assert np.divide(wide, wide[2]) == pytest.approx([4, 6, 1, 1, 5], rel=1e-6)
    assert spans[4][0] == pytest.approx(spans[1][1])  # all-reduce 2 starts as backward ends
    hatched = [bool(p.get_hatch()) for p in patches(figure, "span")]
    assert hatched == [False, False, True, True, False]
    assert {"step", "all-reduce", "all-reduce 2", "forward"} <= {*texts(figure)}
    assert [p.get_linewidth() > 2 for p in patches(figure, "span")] == [False] * 4 + [True]


def test_shards_and_what_is_sent(example):
    figure = example("ring")
    assert len(patches(figure, "shard")) == 32
    assert sum(p.get_facecolor()[3] == 0 for p in patches(figure, "shard")) == 12  # not held
    assert {t for row in RING["before"] for t in row} <= {*texts(figure)}
    straight, around = (p.get_path().vertices for p in patches(figure, "arrow"))
    shards = [extent(p) for p in patches(figure, "shard")[:16]]
    assert straight[0][1] == pytest.approx(shards[0][3])  # from rank 0's shard 0 ...
    assert straight[-1][1] == pytest.approx(shards[4][2])  # ... to rank 1's
    assert around[0][0] == pytest.approx(shards[15][1])
    assert around[-1][1] == pytest.approx((shards[3][2] + shards[3][3]) / 2)


def test_blocks_and_the_ways_around_them(example):
    figure = example("norms")
    assert (len(patches(figure, "block")), len(patches(figure, "arrow"))) == (8, 6)
    blocks = [extent(p) for p in patches(figure, "block")]
    for path, (start, end) in zip(patches(figure, "bypass"), ((0, 2), (4, 7)), strict=True):
        line = path.get_path().vertices
        for point, block in ((line[0], blocks[start]), (line[-1], blocks[end])):
            assert point[0] == pytest.approx(block[0])
            assert block[2] < point[1] < block[3]
        assert min(x for x, _ in line) < blocks[start][0]
    assert texts(figure).count("norm") == 2


def test_parallel_blocks_and_a_loop(example):
    figure = example("LoRA")
    assert len(patches(figure, "block")) == 6  # the wire is not a block
    assert len(patches(figure, "arrow")) == 2 + 2 + 2 + 1
    assert patches(figure, "bypass")[0].get_path().vertices[:, 0].max() > max(
        extent(p)[1] for p in patches(figure, "block"))


def test_a_graph_lies_under_its_inputs_and_a_cut_is_crossed(example):
    figure = example("graph")
    x, w, h, loss = (extent(p) for p in patches(figure, "node"))
    assert x[2] == w[2] < h[2] < loss[2]
    edges = patches(figure, "edge")
    assert len(edges) == 4
    assert [p.get_linestyle() != "-" for p in edges] == [False, False, True, False]
    assert edges[2].get_path().vertices[-1][1] == pytest.approx(loss[2])
    assert len(patches(figure, "cross")) == 2 * (1 + 1)


def test_the_way_back_points_up_and_a_node_lies_below_the_middle_of_its_inputs(example):
    figure = example("there and back")
    ways = [p.get_path().vertices for p in patches(figure, "back")]
    assert len(ways) == 4
    assert all(start[1] > end[1] for start, end in ways)
    assert len(patches(figure, "edge")) == 5
    w, x, b, *below = (sum(extent(p)[:2]) / 2 for p in patches(figure, "node"))
    assert pytest.approx((w + x + b) / 3) in below[:2]


def test_ranges_on_a_log_scale(example):
    figure = example("formats")
    ranges = [extent(p) for p in patches(figure, "range")]
    decades = [np.log10(b / a) for a, b in ((6e-8, 6.1e-5), (6.1e-5, 65504), (1.2e-38, 3.4e38),
                                            (1e-9, 2e-5))]
    wide = np.array([right - left for left, right, *_ in ranges])
    assert wide / wide[2] == pytest.approx(np.array(decades) / decades[2], rel=1e-3)
    assert "(log)" in texts(figure)
    assert len(patches(figure, "moment")) == 2 * 3


def test_levels_and_histogram_share_one_axis(example):
    figure = example("histogram")
    bars = [extent(p) for p in patches(figure, "bar")]
    assert len(bars) == 10
    assert [b - t for *_, t, b in bars] == pytest.approx([1.25] * 10)  # ten values in each
    levels = [p.get_path().vertices[0][0] for p in patches(figure, "level")]
    assert len(levels) == 16
    assert np.diff(levels) / (levels[-1] - levels[0]) == pytest.approx(np.diff(NF4) / 2)
    assert levels[0] == pytest.approx(bars[0][0])


def test_columns_are_to_scale_beside_their_reference(example):
    figure = example("columns")
    bars = patches(figure, "bar")
    floor = extent(bars[7])[3]
    line = patches(figure, "reference")[0].get_path().vertices[0][1]
    assert (floor - line) / bars[7].get_height() == pytest.approx(2.77 / 2.82)
    assert texts(figure).count("0.00") == 7
    assert [bool(b.get_hatch()) for b in bars] == [True] * 7 + [False]


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("missing", ["title", "alt"])
def test_title_and_alt_are_required(name, missing, draw):
    function, args, given = EXAMPLES[name]
    with pytest.raises(ValueError, match=f"{missing}: got ' ', expected"):
        draw(function, *args, **{**given, missing: " "})


@pytest.mark.parametrize(("name", "args", "given", "message"), [
    ("draw_grids", [{}], {}, "grids: got {}, expected at least one matrix"),
    ("draw_grids", [{"a": [1, 0]}], {}, r"grids\['a'\]: got \(2,\), expected a matrix"),
    ("draw_grids", [{"a": [[2.0]]}], {}, r"got \(2.0, 2.0\), expected bools or numbers within"),
    ("draw_grids", [{"a": [[float("nan")]]}], {}, "expected bools or numbers within"),
    ("draw_grids", [{"a": [[1]]}], {"marks": {"b": [[1]]}}, "marks: got 'b', expected one of a"),
    ("draw_grids", [{"a": [[1]]}], {"marks": {"a": [[1, 0]]}}, r"expected shape \(1, 1\)"),
    ("draw_boxes", [{"a": {"b": -1}}], {}, r"sizes: got \[-1\], expected finite numbers >= 0"),
    ("draw_lanes", [{"a": [(1, 1, "b")]}], {}, "expected an end after the start"),
    ("draw_lanes", [{"a": [(0, 2, "b"), (1, 3, "c")]}], {}, "expected spans that do not meet"),
    ("draw_lanes", [{"a": []}], {}, "expected at least one"),
    ("draw_ranks", [{"a": [["x"], ["y", "z"]]}], {}, "expected 2 ranks of 1 shards"),
    ("draw_ranks", [{"a": [["x"]]}], {"arrows": {"a": [(0, 1, 0)]}}, "expected a rank below 1"),
    ("draw_blocks", [{"a": ["x"]}], {"bypass": {"a": [(0, 1)]}}, "expected two different places"),
    ("draw_blocks", [{"a": ["x"]}], {"marks": {"a": ["y"]}}, "got 'y', expected one of x"),
    ("draw_tree", [{"x": "", "y": ""}, [("x", "y"), ("y", "x")]], {}, "expected no circle"),
    ("draw_tree", [{"x": ""}, [("x", "z")]], {}, "got 'z', expected one of x"),
    ("draw_line", [{"a": [0.0, 1.0]}], {"log": True}, "expected numbers above 0 on a log scale"),
    ("draw_line", [{"a": [(2, 1, "b")]}], {}, r"rows\['a'\]: got \(2, 1, 'b'\), expected a number"),
    ("draw_line", [{"a": [1.0]}], {}, "expected at least two that differ"),
    ("draw_histogram", [[]], {}, "expected at least one value, all finite"),
    ("plot_columns", [{"a": float("inf")}], {"xlabel": "", "ylabel": ""}, "expected finite"),
])
def test_what_cannot_be_drawn_is_refused(name, args, given, message, draw):
    with pytest.raises(ValueError, match=message):
        draw(name, *args, **given)


def test_the_bytes_depend_on_the_data_only(example):
    def picture():
        file = io.BytesIO()
        example("graph").savefig(file, format="png", metadata={"Software": None})
        return file.getvalue()
    assert picture() == picture()


@pytest.mark.parametrize("colour", [*canvas.KINDS, canvas.FAULT])
def test_text_in_a_box_is_readable_and_no_kind_is_the_fault(colour):
    def light(c):
        parts = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in to_rgb(c)]
        return float(np.dot([0.2126, 0.7152, 0.0722], parts)) + 0.05
    assert light(canvas.pale(colour)) / light(canvas.DARK) > 7
    assert canvas.FAULT not in canvas.KINDS


def test_a_long_word_breaks_and_every_line_fits():
    lines = canvas.wrap("a supercalifragilistic_name_without_a_blank here", 0.8).split("\n")
    assert "".join(lines) == "asupercalifragilistic_name_without_a_blankhere"
    assert max(map(canvas.text_width, lines)) <= 0.8


def test_labels_move_apart_and_stay_in_order():
    placed = canvas.spread([(1.0, "one label"), (1.05, "another"), (4.9, "at the end")], 0, 5)
    ends = [(m - canvas.text_width(t) / 2, m + canvas.text_width(t) / 2) for _, m, t in placed]
    assert [t for *_, t in placed] == ["one label", "another", "at the end"]
    assert all(one[1] < two[0] for one, two in itertools.pairwise(ends))
    assert 0 <= ends[0][0] < ends[-1][1] <= 5


def test_a_drawing_is_a_figure_to_the_builder_and_no_number_rests_on_it():
    code = 'from dlsys_helpers import draw_line\ndraw_line({"a": [1, 2]}, title="t", alt="a")'
    assert lessons.draws(code)
    assert "dlsys_helpers.number_lines" in fingerprints.rests_on([code], ignored=())
    assert not {"dlsys_helpers.number_lines", "dlsys_helpers.drawing_canvas"} & {
        *fingerprints.rests_on([code])}

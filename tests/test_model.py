"""Your model: parts, text, network and training, in small shapes, from the worked answers."""

import ast
import inspect
import json
import lzma
import math
import resource
from typing import NamedTuple

import pytest
import torch
from torch.nn import functional as F

from dlsys_helpers import catalog, paths, progress
from dlsys_model import answers, standins
from dlsys_model import text as texts
from dlsys_model.network import Network, Shape, rotate, write
from dlsys_model.part_table import BY_ID, CATALOGUE, PLACES
from dlsys_model.parts import PartBroke, Parts, PartsError, load
from dlsys_model.text import Text, TextError
from dlsys_model.training import CheckpointError, Plan, Training, TrainingError

SMALL = Shape(letters=12, width=16, layers=2, heads=2, length=16)
PLAN = Plan(steps=12, rows=4, warm=2, every=4)


@pytest.fixture(scope="module")
def own() -> Parts:
    """All parts from the learner, here the worked answers."""
    return load(paths.SOLUTIONS, BY_ID)


@pytest.fixture
def letters() -> Text:
    """A text of twelve letters with a rule: each follows the one before it, sometimes twice."""
    steps = torch.randint(1, 3, (4000,), generator=torch.Generator().manual_seed(1))
    ids = steps.cumsum(0) % 12
    return Text(ids[:3000], ids[3000:], "abcdefghijkl")


def small(parts: Parts, p: float = 0.0) -> Network:
    torch.manual_seed(0)
    return Network(SMALL, parts, p)


def worksheet(folder, stage: str, change=lambda source: source) -> None:
    """A learner's worksheet: the worked answers, each code cell changed."""
    book = json.loads((paths.SOLUTIONS / f"{stage}.ipynb").read_text("utf-8"))
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            cell["source"] = change("".join(cell["source"]))
    folder.mkdir(exist_ok=True)
    (folder / f"{stage}.ipynb").write_text(json.dumps(book), "utf-8")


# ---- the catalogue

def test_parts_are_exercises_of_all_later_stages():
    known = {trap.id: trap.function for trap in catalog.traps()}
    assert len(CATALOGUE) >= 40
    assert len(BY_ID) == len(CATALOGUE)
    assert {part.id: part.function for part in CATALOGUE} == {id: known[id] for id in BY_ID}
    assert {int(id[:2]) for id in BY_ID} >= set(range(2, 13))
    assert {part.place for part in CATALOGUE} == set(PLACES)


def test_each_part_has_a_stand_in():
    assert all(callable(getattr(standins, part.function)) for part in CATALOGUE)


def test_no_stand_in_is_the_worked_answer(own):
    """Compare their code without docstrings and annotations; the signatures are the same."""
    for part in CATALOGUE:
        one, other = (_bare(inspect.getsource(inspect.unwrap(function))) for function in (
            getattr(standins, part.function), getattr(own, part.function)))
        assert one.args == other.args, part.id
        assert one.body != other.body, part.id


class Bare(NamedTuple):
    args: list[str]
    body: str


def _bare(source: str) -> Bare:
    """The names of a function's arguments and its body."""
    tree = ast.parse(source).body[0]
    body = tree.body[ast.get_docstring(tree) is not None:]
    return Bare([arg.arg for arg in tree.args.args], "\n".join(map(ast.unparse, body)))


def test_worked_answers_are_parts_as_they_stand(own):
    assert own.mine == set(BY_ID)
    assert own.notes == ()


def test_a_part_is_yours_once_its_last_check_passed(tmp_path, monkeypatch):
    monkeypatch.setenv("DLSYS_PROGRESS", str(tmp_path))
    monkeypatch.setattr(paths, "MY_WORK", tmp_path / "work")
    worksheet(tmp_path / "work", "05_normalization")
    assert load().mine == frozenset()
    progress.record("05.2", "pass")
    progress.record("05.3", "pass")
    assert load().mine == {"05.2", "05.3"}
    progress.record("05.3", "wrong")
    assert load().mine == {"05.2"}


def test_a_deleted_answer_changes_hands(tmp_path):
    worksheet(tmp_path, "05_normalization",
              lambda source: source if "def told_apart" not in source else "")
    found = load(tmp_path, ["05.2", "05.3"])
    assert found.mine == {"05.3"}
    assert found.notes[0].startswith("05.2 told_apart: is passed, but no cell defines it now.")


def test_a_syntax_error_costs_its_own_exercise_only(tmp_path):
    worksheet(tmp_path, "05_normalization",
              lambda source: source.replace("*layers]:", "*layers]"))
    found = load(tmp_path, ["05.2", "05.3"])
    assert found.mine == {"05.3"}
    assert "05.2 told_apart: its cell does not parse (expected ':', line" in found.notes[0]


def test_without_a_worksheet_the_stand_ins_are_used(tmp_path):
    found = load(tmp_path, ["05.2"])
    assert found.mine == frozenset()
    assert found.notes[0].startswith("stage 5: its stand-ins are used.")


def test_helpers_in_other_cells_come_along(tmp_path):
    helpers = "KEPT = 1\ndef _twice(x):\n    return KEPT * x\n\n\n"
    worksheet(tmp_path, "05_normalization", lambda source: source.replace(
        "def told_apart(", f"{helpers}def told_apart(").replace(
        "x = layer(x)", "x = layer(_twice(x))"))
    shares = load(tmp_path, ["05.2"]).told_apart([lambda z: z + 9], torch.tensor([[1.0], [-1.0]]))
    assert shares == pytest.approx([1, 1 / 82])


def test_only_what_an_answer_uses_comes_along_in_an_order_that_runs(tmp_path):
    """A scratch line that assigns an argument's name is not run; constants come before uses."""
    helpers = ("x = 1 / 0 if False else open('never')\n"
               "B = 2\nC = B + 1\ndef _use(y):\n    return B * y + C - 3\n\n\n")
    worksheet(tmp_path, "05_normalization", lambda source: source.replace(
        "def told_apart(", f"{helpers}def told_apart(").replace(
        "x = layer(x)", "x = layer(_use(x) / 2)"))
    notes = []
    [(_, sheet)] = answers.chosen(tmp_path, ["05.2"], notes)
    assert sheet.needed("told_apart") == ["B", "C", "_use", "told_apart"]
    found = load(tmp_path, ["05.2"])
    assert found.notes == ()
    assert found.told_apart([], torch.ones(2, 1)) == [0.0]


def test_a_strange_part_is_refused():
    with pytest.raises(PartsError, match=r"got '77\.1', expected an exercise that is one"):
        Parts().without("77.1")


# ---- a part that fails inside the model

def broken(id: str, fn) -> Parts:
    return Parts({id: fn})


def test_an_error_names_part_shapes_and_exercise():
    def decode_step(q, k, v, cache, rotate):
        return q @ k
    with pytest.raises(PartBroke) as caught:
        small(broken("08.10", decode_step))(torch.zeros(1, 5, dtype=torch.int64))
    said = str(caught.value)
    assert said.startswith("part 08.10 decode_step broke in the model, with (1, 2, 5, 8) float32, ")
    assert 'parts.without("08.10")' in said
    assert "dlsys check 08.10" in said
    assert "\n" not in said
    assert caught.value._render_traceback_() == [said], "a notebook shows a line"


@pytest.mark.parametrize(("spoilt", "got"), [
    (lambda q: q.double(), "(1, 2, 5, 8) float64"), (lambda q: q[:, 1:], "(1, 1, 5, 8) float32"),
    (lambda q: q.to("meta"), "(1, 2, 5, 8) float32 on meta"), (lambda q: None, "NoneType")])
def test_a_result_of_another_kind_is_named(spoilt, got):
    wrong = broken("08.10", lambda q, k, v, cache, rotate: spoilt(q))
    with pytest.raises(PartBroke, match=r"expected \(1, 2, 5, 8\) float32") as caught:
        small(wrong)(torch.zeros(1, 5, dtype=torch.int64))
    assert f"part 08.10 decode_step returned {got} in the model" in str(caught.value)


def test_an_inner_part_is_named_not_the_one_around_it():
    def decode_step(q, k, v, cache, rotate):
        raise ZeroDivisionError("no")
    parts = Parts({"08.10": decode_step, "01.1": standins.predict})
    with pytest.raises(PartBroke, match=r"^part 08\.10 decode_step broke"):
        parts.predict(small(parts), torch.zeros(1, 5, dtype=torch.int64))


# ---- text

def test_prose_is_frozen_and_its_halves_stand_apart():
    text = texts.prose()
    whole = lzma.decompress((paths.ROOT / "src/dlsys_model/prose.txt.xz").read_bytes()).decode()
    assert whole.isascii()
    assert (len(whole), len(text.train), len(text.valid)) == (317_272, 287_272, 30_000)
    assert text.decode(text.valid[:2000]) == whole[18_000:20_000]
    assert text.decode(text.train[18_000:20_000]) == whole[20_000:22_000]


def test_encode_and_decode_are_inverse_and_strangers_are_named():
    text = texts.prose()
    assert text.decode(text.encode("The gradient.")) == "The gradient."
    with pytest.raises(TextError, match="got 'é', which the model has never seen"):
        text.encode("café")


@pytest.mark.parametrize(("data", "said"), [
    (b"ten bytes.", "got 10 characters, expected at least 10,000"),
    (b"", "got 0 characters"),
    ("wide " * 9000, "got UTF-16, expected UTF-8"),
    (b"\x89PNG\r\n\x1a\n" * 9000, "byte 0 is not UTF-8"),
    (b"a\0b\0" * 9000, "got UTF-16"), (b"\0a\0b" * 9000, "got UTF-16"),
    (b"ab\0" * 9000, "holds zero bytes"),
    ("".join(map(chr, range(0x4e00, 0x8000))).encode(), "kinds of letters, expected at most")])
def test_a_file_that_is_no_text_is_refused(tmp_path, data, said):
    path = tmp_path / "mine.txt"
    path.write_bytes(data.encode("utf-16") if isinstance(data, str) else data)
    with pytest.raises(TextError, match=said):
        texts.from_file(path)


def test_a_missing_file_or_a_folder_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none.txt"):
        with pytest.raises(TextError, match="cannot be read"):
            texts.from_file(path)


def test_a_text_of_ones_own_keeps_its_letters(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("Grüße vom Fluß, " * 700, "utf-8")
    text = texts.from_file(path)
    assert set(text.letters) == set("Grüße vom Fluß, ")
    assert len(text.train) + len(text.valid) == 16 * 700


def test_batches_hold_the_text_and_what_follows():
    tokens = torch.arange(50)
    x, y = texts.batch(tokens, torch.Generator().manual_seed(0), 200, 10)
    assert torch.equal(y, x + 1)
    assert x.min() == 0
    assert y.max() == 49
    with pytest.raises(ValueError, match="got 10 tokens, expected more than 10"):
        texts.batch(tokens[:10], torch.Generator(), 1, 10)


# ---- network

def test_weights_have_the_agreed_names_and_number():
    names = dict(Network(Shape(92), Parts()).named_parameters())
    assert sum(p.numel() for p in names.values()) == 463_680
    assert {name.replace("blocks.3", "blocks.N") for name in names
            if "blocks" not in name or "blocks.3" in name} == {
        "emb.weight", "head.weight", "norm.weight", "norm.bias", *(f"blocks.N.{rest}" for rest in (
            "norm1.weight", "norm1.bias", "qkv.weight", "out.weight", "norm2.weight",
            "norm2.bias", "up.weight", "up.bias", "down.weight", "down.bias"))}


def test_rope_depends_on_distance_only():
    q, k = torch.randn(2, 1, 1, 1, 8).unbind(0)
    at = [(rotate(q, torch.tensor([i])) * rotate(k, torch.tensor([i - 3]))).sum()
          for i in (3, 9, 200)]
    torch.testing.assert_close(at[1:], [at[0]] * 2, atol=1e-4, rtol=0)


@pytest.mark.parametrize("mine", [True, False])
def test_the_future_changes_nothing(own, mine):
    model = small(own if mine else Parts()).eval()
    a = torch.randint(12, (1, 16))
    b = torch.cat([a[:, :9], (a[:, 9:] + 1) % 12], 1)
    assert torch.equal(model(a)[:, :9], model(b)[:, :9])
    assert not torch.equal(model(a)[:, 9], model(b)[:, 9])


@pytest.mark.parametrize("mine", [True, False])
def test_a_cache_gives_what_the_whole_row_gives(own, mine):
    model = small(own if mine else Parts()).eval()
    ids, caches = torch.randint(12, (2, 16)), model.caches()
    with torch.no_grad():
        steps = [model(part, caches) for part in ids.split([5, 1, 1, 4, 5], 1)]
        torch.testing.assert_close(torch.cat(steps, 1), model(ids), atol=1e-5, rtol=0)


def test_beyond_its_length_a_cache_keeps_a_window():
    """One layer computes the same from only the last 16 positions."""
    torch.manual_seed(3)
    model = Network(SMALL._replace(layers=1), Parts(), 0.0).eval()
    ids, caches = torch.randint(12, (1, 60)), model.caches()
    with torch.no_grad():
        for place in range(60):
            last = model(ids[:, place:place + 1], caches)
        assert caches[0]["k"].shape[2] == 16
        assert caches[0].dropped == 44
        # The newest token sees 15 kept tokens and itself, as many as in training.
        torch.testing.assert_close(last[:, -1], model(ids[:, -16:])[:, -1], atol=1e-5, rtol=0)


def test_padding_changes_nothing(own):
    model = small(own).eval()
    ids = torch.randint(12, (1, 9))
    padded, real = F.pad(ids, (5, 0)), F.pad(torch.ones(1, 9, dtype=torch.int64), (5, 0))
    torch.testing.assert_close(model(padded, real=real)[:, 5:], model(ids), atol=1e-5, rtol=0)


def test_writing_with_and_without_cache_agrees_and_restores_the_mode(own):
    model = small(own, p=0.5).train()
    prompt = torch.tensor([1, 2, 3])
    lines = [list(write(model, prompt, 12, 0, cache)) for cache in (True, False)]
    assert lines[0] == lines[1]
    assert len(lines[0]) == 12
    assert model.training


# ---- training

def losses(parts: Parts, text: Text, **plan) -> list[float]:
    run = Training(small(parts), text, PLAN._replace(**plan))
    list(run.run())
    return run.losses


def test_own_parts_train_as_torchs_do(own, letters):
    mine, torchs = losses(own, letters), losses(Parts(), letters)
    assert mine == pytest.approx(torchs, abs=1e-5)
    assert mine[-1] < mine[0]


def test_any_mixture_trains_alike(own, letters):
    generator = torch.Generator().manual_seed(7)
    for _ in range(3):
        some = [part.id for part in CATALOGUE if torch.rand((), generator=generator) < 0.5]
        assert losses(own.only(*some), letters) == pytest.approx(losses(Parts(), letters),
                                                                 abs=1e-5)


@pytest.mark.parametrize("how", [{"by_hand": True}, {"parts_of": 2}])
def test_other_routes_to_the_same_gradient_train_alike(own, letters, how):
    assert losses(own, letters, **how)[:8] == pytest.approx(losses(own, letters)[:8], abs=1e-3)


@pytest.mark.parametrize("how", [{"rule": "lion"}, {"dtype": torch.bfloat16}])
def test_other_steps_train_alike_with_own_parts(own, letters, how):
    mine, torchs = losses(own, letters, **how), losses(Parts(), letters, **how)
    assert mine == pytest.approx(torchs, abs=2e-2)
    assert mine[-1] < mine[0]


def test_the_update_is_that_of_torchs_optimizer(letters):
    """Compare the stand-in with torch.optim.AdamW in a separate loop."""
    run = Training(small(Parts()), letters, PLAN)
    twin = small(Parts())
    opt = torch.optim.AdamW(standins.decay_groups(twin, 0.1), betas=(0.9, 0.95))
    for _ in range(6):
        for group in opt.param_groups:
            group["lr"] = standins.warmup_cosine(run.step, 2, 12, 3e-3, 3e-4)
        x, y = run.batch()
        opt.zero_grad()
        F.cross_entropy(twin(x).flatten(0, 1), y.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
        opt.step()
        run.one_step()
    for mine, theirs in zip(run.model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("mine", [True, False])
def test_a_resumed_run_ends_to_the_bit_where_a_whole_one_does(own, letters, tmp_path, mine):
    parts = own if mine else Parts()
    whole = Training(small(parts, 0.1), letters, PLAN)
    list(whole.run())
    first = Training(small(parts, 0.1), letters, PLAN)
    list(first.run(8, tmp_path / "run.pt"))
    second = Training(small(parts, 0.1), letters, PLAN)
    torch.manual_seed(999)
    second.resume(tmp_path / "run.pt")
    list(second.run(save=tmp_path / "run.pt"))
    for a, b in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert second.log() == whole.log()


def test_early_stopping_ends_a_run(letters):
    run = Training(small(Parts()), letters, PLAN._replace(steps=400, warm=2, every=2, patience=1,
                                                          peak=3.0, floor=3.0))
    list(run.run())
    assert run.step < 400


def test_ranks_share_the_rows_of_one(letters):
    whole = Training(small(Parts()), letters, PLAN)
    halves = [Training(small(Parts()), letters, PLAN, rank, 2) for rank in (0, 1)]
    for step in (0, 1, 11):
        for run in (whole, *halves):
            run.step = step
        together = torch.cat([run.batch()[0] for run in halves])
        assert sorted(together.tolist()) == sorted(whole.batch()[0].tolist())


def test_an_epoch_has_each_row_once(letters):
    run = Training(small(Parts()), letters, PLAN)
    count = (len(letters.train) - 1 - 16) // 16
    assert sorted(Parts().epoch_indices(count, 1, 0, 0, 0, False)) == list(range(count))
    first, last = run.batch()[0], None
    run.step = count // 4
    last = run.batch()[0]
    assert not torch.equal(first, last)


def test_a_text_too_short_for_its_rows_is_refused(letters):
    short = letters._replace(train=letters.train[:40])
    with pytest.raises(TrainingError, match="holds 1 rows of 16, expected 4 or more"):
        Training(small(Parts()), short, PLAN).batch()


def test_a_loss_that_is_not_finite_stops_the_run(letters):
    model = small(Parts())
    with torch.no_grad():
        model.head.weight.fill_(math.nan)
    with pytest.raises(TrainingError, match="step 0: the loss is nan"):
        Training(model, letters, PLAN).one_step()


# ---- checkpoints

@pytest.mark.parametrize("mine", [True, False])
def test_a_full_disk_leaves_the_former_checkpoint(own, letters, mine, monkeypatch, tmp_path):
    path = tmp_path / "run.pt"
    run = Training(small(own if mine else Parts()), letters, PLAN)
    list(run.run(4, path))
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")
    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(CheckpointError, match=r"run\.pt: the checkpoint of step 8 cannot be "
                                              r"written \(No space left on device\)\."):
        list(run.run(8, path))
    assert path.read_bytes() == before
    monkeypatch.undo()
    list(run.run(save=path))  # the model was in memory, so it continues
    assert torch.load(path)["facts"]["step"] == 12


def test_a_kill_while_the_log_is_written_loses_nothing(letters, tmp_path):
    """The log is replaced as a whole and may be one entry ahead of the checkpoint."""
    path = tmp_path / "run.pt"
    run, whole = (Training(small(Parts()), letters, PLAN) for _ in range(2))
    list(run.run(4, path))
    former = path.read_bytes()
    list(run.run(8, path))
    path.write_bytes(former)
    (tmp_path / "run.pt.log.part").write_text('["step", 8, {"lo')
    again = Training(small(Parts()), letters, PLAN)
    again.resume(path)
    list(again.run(save=path))
    list(whole.run())
    assert [row["step"] for row in again.log()] == [4, 8, 12]
    assert again.log() == whole.log()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run.pt", "run.pt.log"]


@pytest.mark.parametrize("data", [b"", b"half", None])
def test_a_checkpoint_that_is_none_is_refused(letters, tmp_path, data):
    path = tmp_path / "run.pt"
    if data is not None:
        path.write_bytes(data)
    said = "no such checkpoint" if data is None else "is no whole checkpoint"
    with pytest.raises(CheckpointError, match=said):
        Training(small(Parts()), letters, PLAN).resume(path)


def test_a_checkpoint_of_another_plan_is_refused(letters, tmp_path):
    run = Training(small(Parts()), letters, PLAN)
    list(run.run(4, tmp_path / "run.pt"))
    with pytest.raises(CheckpointError, match="has seed 0, expected 5"):
        Training(small(Parts()), letters, PLAN._replace(seed=5)).resume(tmp_path / "run.pt")


def test_neighbouring_seeds_share_no_order(letters):
    """Seed 0's second epoch has a different order from seed 1's first."""
    def rows_of(seed, epoch):
        run = Training(small(Parts()), letters, PLAN._replace(steps=999, seed=seed))
        run.step = epoch * ((len(letters.train) - 1 - 16) // 16 // PLAN.rows)
        return run.batch()[0]
    assert torch.equal(rows_of(1, 0), rows_of(1, 0))
    assert not torch.equal(rows_of(0, 1), rows_of(1, 0))


@pytest.mark.parametrize("mine", [True, False])
def test_pieces_are_clipped_as_the_whole_is(own, letters, mine):
    parts = own if mine else Parts()

    def after_a_step(**plan):
        run = Training(small(parts), letters, PLAN._replace(**plan))
        with torch.no_grad():
            run.model.head.weight.mul_(50)  # its gradient is far above the bound
        run.one_step()
        return run.norm, torch.cat([p.grad.flatten() for p in run.model.parameters()]).norm()
    norm, left = after_a_step(parts_of=2)
    assert norm == pytest.approx(after_a_step()[0], rel=1e-3)
    assert norm > 2
    assert left == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("mine", [True, False])
def test_a_checkpoint_that_the_disk_does_not_take_is_one_line_and_the_former_stays(
        own, letters, tmp_path, mine):
    run, path = Training(small(own if mine else Parts()), letters, PLAN), tmp_path / "run.pt"
    (soft, hard), entries = resource.getrlimit(resource.RLIMIT_FSIZE), run.run(save=path)
    next(entries)
    former = path.read_bytes()
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(former) // 2, hard))
    try:
        with pytest.raises(CheckpointError, match=r"the checkpoint of step 8 cannot be written "
                                                  r"\(.*\)\. The former one is whole\.") as caught:
            next(entries)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(caught.value)
    assert "enforce" not in str(caught.value)
    assert path.read_bytes() == former
    assert sorted(one.name for one in tmp_path.iterdir()) == ["run.pt", "run.pt.log"]
    list(run.run(save=path))
    assert [row["step"] for row in run.log()] == [4, 8, 12]

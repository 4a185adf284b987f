"""Your model: rehearsal, adapters, compression and separate processes, with small shapes."""

import copy
import resource

import pytest
import torch
from torch.nn import functional as F

from dlsys_helpers import paths
from dlsys_model import adapters, apart, compression, standins
from dlsys_model import text as texts
from dlsys_model.network import Network, Shape
from dlsys_model.part_table import BY_ID
from dlsys_model.parts import PartBroke, Parts, load
from dlsys_model.rehearsal import rehearse

SMALL = {"width": 32, "layers": 2, "heads": 2, "length": 32}


@pytest.fixture(scope="module", params=[
    "own", pytest.param("stand-ins", marks=pytest.mark.nightly)])
def parts(request) -> Parts:
    return load(paths.SOLUTIONS, BY_ID) if request.param == "own" else Parts()


@pytest.fixture(scope="module")
def text() -> texts.Text:
    return texts.prose()


def a_model(parts, text) -> Network:
    torch.manual_seed(0)
    made = Network(Shape(len(text.letters), **SMALL), parts, 0.0)
    for block in made.blocks:  # weights as large as trained ones, so that rounding shows
        torch.nn.init.normal_(block.down.weight, 0, 0.2)
    return made.eval()


@pytest.fixture
def model(parts, text) -> Network:
    return a_model(parts, text)


# ---- rehearsal

def test_worked_answers_pass_the_rehearsal(parts):
    before = torch.get_rng_state()
    rehearse(parts)
    assert torch.equal(torch.get_rng_state(), before)


def spoilt_adam(w, grad, state, lr, betas, eps, weight_decay):
    standins.adam_step(w, grad, state, lr / 2, betas, eps, weight_decay)


def spoilt_loss(scores, labels):
    return F.cross_entropy(scores.double(), labels).float() + 0.5


def spoilt_checkpoint(path, parts, facts):
    standins.save_checkpoint(path, {**parts, "optimizer": copy.deepcopy(parts["model"])}, facts)


def spoilt_order(n, world, rank, epoch, seed, exact):
    return list(range(rank, n, world))


def spoilt_meter():
    add, mean = standins.make_meter()
    return add, lambda: 2 * mean()


def spoilt_probs(logits, kind):
    return logits.softmax(0)


@pytest.mark.parametrize(("id", "fn", "said"), [
    ("04.8", spoilt_adam, r"makes the losses of shape \(4,\) differ"),
    ("03.2", spoilt_loss, "makes the losses"), ("09.5", spoilt_order, "makes the losses"),
    ("12.6", spoilt_meter, "makes the log"), ("01.2", spoilt_probs, "makes the letters written"),
    ("12.8", spoilt_checkpoint, "stops the training"),
    ("12.9", lambda names, stored: {n: i for i, n in enumerate(sorted(set(names))[::-1])},
     "makes the letters"),
    ("08.10", lambda q, k, v, cache, rotate: q.mul_(2), "broke in the model"),
    ("10.2", lambda W, A, B, alpha: W + 2 * alpha / len(A) * B @ A, "makes the loss merged"),
    ("11.3", lambda student, teacher, labels, T, alpha: student.sum() * 0, "makes the logits of"),
    ("09.11", lambda losses_of, params, batch, all_sum: 0.0, "stops the training"),
    ("09.9", lambda tensors, layout, gpus, shard: 0, "makes the bytes of the state"),
    ("08.4", lambda q, k, v, length, tile: v[:len(q)], "makes the attention of shape")])
def test_the_rehearsal_names_the_part_that_breaks(id, fn, said):
    own = load(paths.SOLUTIONS, ["03.3"])
    others = {"03.3": own.clipped_step}
    with pytest.raises(PartBroke, match=said) as caught:
        rehearse(Parts({**others, id: fn}))
    text = str(caught.value)
    assert text.startswith(f"part {id} {BY_ID[id].function} ")
    assert f'parts.without("{id}")' in text
    assert "\n" not in text


# ---- adapters

def test_an_adapter_begins_as_nothing_learns_and_merges(parts, model, text, tmp_path):
    train, test = adapters.second_text(parts, text, texts.signatures(), length=32)
    assert len(train.ids) + len(test.ids) > 90
    lora = adapters.adapted(model)
    state = parts.passport(lora)
    assert len(state["layers"]) == len(state["idle"]) == 8
    assert (state["other"], state["frozen"]) == ([], [])
    torch.testing.assert_close(adapters.loss_of(lora, test), adapters.loss_of(model, test))
    before = {name: p.clone() for name, p in model.state_dict().items()}
    adapters.tune(lora, train, epochs=1)
    assert adapters.loss_of(lora, test) < adapters.loss_of(model, test)
    assert parts.passport(lora)["idle"] == []
    for name, p in model.state_dict().items():
        assert torch.equal(p, before[name]), "the model itself has not moved"
    for other in (adapters.merged(lora), adapters.through_file(lora, tmp_path / "adapter.pt")):
        torch.testing.assert_close(other(test.ids), lora(test.ids), atol=1e-4, rtol=0)


def test_the_paths_of_an_adapter_are_those_of_peft(model, tmp_path):
    lora = adapters.adapted(model)
    lora.get_parameter("blocks.0.qkv.B").data.fill_(1.0)  # an all-zero adapter is not loaded
    adapters.through_file(lora, tmp_path / "adapter.pt")
    file = torch.load(tmp_path / "adapter.pt")
    assert "base_model.model.blocks.0.qkv.lora_A.weight" in file
    view = dict(adapters.under_peft_paths(lora).named_parameters())
    own = view["base_model.model.blocks.0.qkv.lora_A.default.weight"]
    assert own is lora.get_parameter("blocks.0.qkv.A")
    assert len(file) == len(view) == 16


def test_an_adapter_that_the_disk_does_not_take_is_one_line_and_leaves_nothing(model, tmp_path):
    lora, (_, hard) = adapters.adapted(model), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(adapters.AdapterError, match=r"adapter\.pt: the adapter cannot be wr"):
            adapters.through_file(lora, tmp_path / "adapter.pt")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert list(tmp_path.iterdir()) == []


def test_only_the_answers_letters_are_learned(parts, text):
    rows, _ = adapters.second_text(parts, text, [("ab\n", "cdefg\n"), ("x\n", "yz\n")] * 5, 12)
    for ids, labels, real in zip(*rows, strict=True):
        learned = text.decode(ids[labels != -100])
        assert learned in ("cdefg\n", "yz\n")
        assert torch.equal(ids[labels != -100], labels[labels != -100])
        assert text.decode(ids[real == 1]) in ("ab\ncdefg\n", "x\nyz\n")


def test_a_second_text_in_strange_letters_is_refused(parts, text):
    with pytest.raises(texts.TextError, match="9 of 49 pairs are written in the letters"):
        adapters.second_text(parts, text, [("ab", "c")] * 9 + [("ж", "я")] * 40)


# ---- compression

def test_bits_cost_what_they_say_and_round_by_half_a_step(model):
    whole = compression.whole(model)
    assert whole.bytes == 4 * sum(p.numel() for p in model.parameters())
    matrices = sum(p.numel() for p in model.parameters() if p.dim() > 1)
    rest = sum(p.numel() for p in model.parameters()) - matrices
    for bits in (8, 4):
        small = compression.in_bits(model, bits)
        assert small.bytes == matrices * bits // 8 + 3 * matrices // 32 + 4 * rest
        for (name, weight), new in zip(model.state_dict().items(),
                                       small.model.state_dict().values(), strict=True):
            if weight.dim() > 1:
                groups = weight.view(len(weight), -1, 32)
                step = (groups.amax(2).clamp(min=0) - groups.amin(2).clamp(max=0)) / (2**bits - 1)
                off = (new - weight).view(groups.shape).abs() / step[..., None]
                assert off.max() < 0.5 + 2**bits * 2**-10, name  # the scales are float16
            else:
                assert torch.equal(weight, new)


def test_pruned_weights_stay_zero(model, text):
    small = compression.pruned(model, text, share=0.5, steps=3)
    for block in small.model.blocks:
        share = (block.down.weight == 0).float().mean()
        assert share == pytest.approx(0.5, abs=0.01)
    assert small.bytes < compression.whole(model).bytes


def inputs_of(layer, run):
    """What a layer gets while the model runs, one row per position."""
    seen = []
    hook = layer.register_forward_pre_hook(lambda _, given: seen.append(given[0].flatten(0, 1)))
    run()
    hook.remove()
    return seen[0]


def test_a_narrower_model_makes_up_for_what_it_lost(model, text):
    x = text.train[:32 * 32].view(32, 32)
    small = compression.narrower(model, x, share=0.25)
    assert small.model.blocks[0].down.weight.shape == (32, 96)
    plain = copy.deepcopy(model)
    hidden = inputs_of(plain.blocks[0].down, lambda: model.parts.predict(plain, x))
    weight = plain.blocks[0].down.weight
    drop = (hidden.square().mean(0) * weight.square().sum(0)).argsort()[:32]
    weight.data[:, drop] = 0
    block = model.blocks[0]
    given = inputs_of(block.norm2, lambda: model.parts.predict(model, x))
    exact = block.mlp(block.norm2(given))
    after = small.model.blocks[0].mlp(small.model.blocks[0].norm2(given))
    cut = plain.blocks[0].mlp(plain.blocks[0].norm2(given))
    assert (after - exact).square().sum() < (cut - exact).square().sum()


def test_a_student_learns_from_its_teacher(model, text):
    small = compression.student(model, text, epochs=2, steps=4)
    assert small.model.shape.width == 16
    assert small.bytes < compression.whole(model).bytes / 2
    assert compression.loss(small.model, text, model.parts, 32) < 4.6


def test_an_onnx_program_agrees_at_other_sizes(text):
    """The stand-ins are exported; the notebook does the same with a learner's parts."""
    pytest.importorskip("onnxruntime")
    parts = Parts()
    model = a_model(parts, text)
    file, program = compression.as_onnx(model, text.valid[:60].view(2, 30),
                                        text.valid[:60].view(3, 20))
    batches = [text.valid[:n * 10].view(n, 10).float() for n in (1, 3)]
    assert parts.disagreements(compression.Letters(model), program, batches, 1e-3) == []
    with torch.no_grad():
        model.head.weight[0, 0] += 9
    assert parts.disagreements(compression.Letters(model), program, batches, 1e-3) == [0, 1]
    assert len(file) > 4 * sum(p.numel() for p in model.parameters())


# ---- in separate processes
# The notebook's claims test their results, see test_your_model.

@pytest.fixture(scope="module")
def own() -> Parts:
    return load(paths.SOLUTIONS, BY_ID)


def job(parts: Parts, **plan) -> apart.Job:
    return apart.job(parts, {"steps": 8, "every": 2, "warm": 2, "rows": 4, **plan}, SMALL, 0.1)


def test_a_killed_run_has_the_threads_of_the_session(own, tmp_path):
    """Two threads sum matrices of this size in a different order."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        told = {**job(own), "shape": {"width": 48, "layers": 2, "heads": 4, "length": 64}}
        apart.killed(told, tmp_path / "run.pt", 2)
        here = apart.begun(told)
        list(here.run(2, tmp_path / "here.pt"))
    finally:
        torch.set_num_threads(before)
    there = torch.load(tmp_path / "run.pt")["parts"]["model"]
    for name, weight in here.model.state_dict().items():
        assert torch.equal(weight, there[name]), name


def test_a_process_that_ends_otherwise_says_why(own, tmp_path):
    with pytest.raises(apart.ProcessFailed, match="CheckpointError"):
        apart.killed(job(own), tmp_path / "no folder" / "run.pt", 4)

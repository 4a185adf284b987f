"""Run the parts around the training in a small model, for numbers that can be compared.

Second text, adapters, compression, meters and two processes, each used as the model uses it, at
toy sizes, without separate processes.
"""

from __future__ import annotations

import copy
import tempfile
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dlsys_model import adapters, compression
from dlsys_model.network import Network, Shape, rotate
from dlsys_model.part_table import BY_ID
from dlsys_model.parts import Parts
from dlsys_model.text import Text
from dlsys_model.training import Plan, Training

WIDE = Shape(letters=12, width=32, layers=1, heads=2, length=8)
Numbers = dict[str, Tensor]


def trial(id: str, parts: Parts, seed: int) -> Numbers:
    """Numbers to which this part contributes, with these parts; torch's generator advances."""
    torch.manual_seed(seed)
    text = walk()
    model = Network(WIDE, parts, 0.0)
    for block in model.blocks:  # weights of a trained size
        nn.init.normal_(block.down.weight, 0, 0.2)
    return TRIED[id if id in TRIED else BY_ID[id].place](parts, model.eval(), text)


def walk(letters: str = "abcdefghijkl") -> Text:
    """A text of twelve letters with a rule: each follows the one before it by one or two."""
    ids = torch.randint(1, 3, (600,)).cumsum(0) % len(letters)
    return Text(ids[:480], ids[480:], letters)


def _numbers(**values) -> Numbers:
    return {name: value.detach().float() if isinstance(value, Tensor)
            else torch.tensor(value).float() for name, value in values.items()}


# ---- second text and adapters

def _pairs(text: Text, count: int = 20) -> list[tuple[str, str]]:
    return [(text.decode(text.train[n:n + 3]), text.decode(text.train[n + 3:n + 6 + n % 4]))
            for n in range(0, 8 * count, 8)]


def _split(parts: Parts, _: Network, __: Text) -> Numbers:
    train, test = parts.split_groups(torch.arange(20), 0.2, 0)
    return _numbers(the_rows_of_both=torch.cat([train, test]).sort().values,
                    the_rows_to_test=len(test))


def _rows(parts: Parts, _: Network, text: Text) -> Numbers:
    train, test = adapters.second_text(parts, text, _pairs(text), WIDE.length)
    return _numbers(the_letters=torch.cat([train.ids, test.ids]),
                    the_labels=torch.cat([train.labels, test.labels]))


def _adapters(parts: Parts, model: Network, text: Text) -> Numbers:
    train, test = adapters.second_text(parts, text, _pairs(text), WIDE.length)
    lora = adapters.adapted(model, r=2, alpha=4.0)
    before = adapters.loss_of(lora, test)
    adapters.tune(lora, train, epochs=2)
    with tempfile.TemporaryDirectory() as folder:
        back = adapters.through_file(lora, Path(folder, "adapter.pt"))
    found = parts.passport(lora)
    return _numbers(the_loss_before=before, the_loss_tuned=adapters.loss_of(lora, test),
                    the_loss_merged=adapters.loss_of(adapters.merged(lora), test),
                    the_loss_read_back=adapters.loss_of(back, test),
                    the_numbers_trained=found["trainable"],
                    the_layers=[len(found["layers"]), len(found["idle"])])


# ---- compression

def _bytes(_: Parts, model: Network, __: Text) -> Numbers:
    return _numbers(the_bytes=[compression.whole(model).bytes,
                               compression.in_bits(model, 4).bytes])


def _bits(_: Parts, model: Network, text: Text) -> Numbers:
    """In 4 bits only the size of the error: a weight between two levels may go to either."""
    rounded = {bits: compression.in_bits(model, bits).model for bits in (8, 4)}
    off = [new - old for new, old in zip(rounded[4].parameters(), model.parameters(),
                                         strict=True)]
    return _numbers(the_logits_in_8_bits=rounded[8](text.valid[None, :8]),
                    the_errors_in_4_bits=[one.square().mean().sqrt().item() for one in off])


def _pruned(_: Parts, model: Network, text: Text) -> Numbers:
    small = compression.pruned(model, text, steps=2)
    return _numbers(the_logits_pruned=small.model.eval()(text.valid[None, :8]),
                    the_bytes=small.bytes)


def _narrower(_: Parts, model: Network, text: Text) -> Numbers:
    small = compression.narrower(model, text.train[:320].view(40, 8))
    return _numbers(the_logits_of_the_narrower=small.model(text.valid[None, :8]))


def _student(_: Parts, model: Network, text: Text) -> Numbers:
    small = compression.student(model, text, epochs=2, steps=2)
    return _numbers(the_logits_of_the_student=small.model(text.valid[None, :8]))


def _open_sizes(parts: Parts, _: Network, text: Text) -> Numbers:
    return _numbers(the_open_sizes=list(parts.free_dims([text.valid[:12].view(2, 6),
                                                         text.valid[:12].view(3, 4)])))


def _differing(parts: Parts, model: Network, text: Text) -> Numbers:
    batches = [text.valid[:8 * n].view(n, 8).float() for n in (1, 3)]
    spoilt = copy.deepcopy(model)
    spoilt.head.weight.data[0] += 1
    asked = compression.Letters(model)
    return _numbers(the_batches_that_differ=[
        len(parts.disagreements(asked, compression.Letters(other).eval(), batches, 1e-3))
        for other in (model, spoilt)])


# ---- two processes

def _gradients(parts: Parts, model: Network, text: Text) -> Numbers:
    """As if a second rank had the same rows: each sum is twice this rank's."""
    x, y = text.train[:32].view(4, 8), text.train[1:33].view(4, 8)
    weights = list(model.parameters())
    loss = parts.average_grads(
        lambda batch: F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten(),
                                      reduction="none"), weights, (x, y), lambda t: 2 * t)
    return _numbers(the_loss=loss, the_gradients=torch.cat([w.grad.flatten() for w in weights]))


class _OneRank(nn.Module):
    """Behaves like DistributedDataParallel for its caller, on one rank."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.module(*inputs)

    def no_sync(self):
        """Nothing is sent at all."""
        return nullcontext()


def _accumulated(parts: Parts, model: Network, text: Text) -> Numbers:
    batches = [(text.train[n:n + 16].view(2, 8), text.train[n + 1:n + 17].view(2, 8))
               for n in range(0, 64, 16)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parts.ddp_accum(_OneRank(model), optimizer, lambda logits, y: F.cross_entropy(
        logits.flatten(0, 1), y.flatten()), batches, 2)
    return _numbers(the_weights=torch.cat([w.flatten() for w in model.parameters()]))


def _shards(parts: Parts, model: Network, _: Text) -> Numbers:
    state = dict(model.state_dict())
    back = parts.reshard(parts.reshard([state], 2), 1)[0]
    return _numbers(**{name: back[name] for name in state})


# ---- meters

def _meters(parts: Parts, model: Network, text: Text) -> Numbers:
    run = Training(model, text, Plan(steps=4, rows=4, warm=1))
    x, y = run.batch()
    weights = list(model.parameters())
    hidden = torch.tensor([[1.0, 0, 0, 2], [3, 0, 0, 0]])
    sizes = [(w.numel(), True) for w in weights]
    found = parts.audit(model, run.optimizer)
    run.one_step()
    logits = parts.predict(model, x)
    model.unused = nn.Linear(2, 2)
    unused = parts.unused_names(model, [(x, y)], lambda _, batch: run._loss(*batch))
    del model.unused
    moved = parts.layer_report(model, run.one_step)
    return _numbers(
        the_logits=logits, the_bytes_of_the_state=parts.state_bytes(sizes, "float32", 1, "none"),
        the_largest_move=parts.step_size(run.optimizer), dead_units=parts.dead_units(hidden),
        hidden_weights=parts.hidden_values(model), missing_weights=len(found["missing"]),
        unused_weights=len(unused), the_moves=[moved[name] for name, _ in
                                               model.named_parameters() if name in moved],
        moved_by_neighbours=parts.batch_dependence(model, x, x[:1]),
        noisy_modules=len(parts.noisy_modules(model.eval(), x)),
        told_apart=parts.told_apart(model.branches(), model.emb(x)),
        modules_with_a_NaN=parts.first_nan_module(model, x) is not None,
        waits=len(parts.find_waits([("aten::item", 0.0, 5.0),
                                    ("aten::_local_scalar_dense", 1.0, 4.0)])))


def _gain(parts: Parts, _: Network, __: Text) -> Numbers:
    """The gain of ReLU, the only one that the stand-in knows."""
    return _numbers(the_gain=round(float(parts.gain_for(F.relu)), 1))


def _tiles(parts: Parts, _: Network, __: Text) -> Numbers:
    q, k, v = torch.randn(3, 20, 8)
    place = torch.arange(20)
    return _numbers(the_attention=parts.tiled_attention(rotate(q, place), rotate(k, place), v,
                                                        20, 8))


TRIED = {
    "06.7": _split, "10.3": _rows, "10.6": _rows, "adapters": _adapters, "11.5": _bytes,
    "11.1": _bits, "01.5": _pruned, "11.2": _pruned, "11.4": _narrower, "11.3": _student,
    "02.3": _student, "06.4": _student, "11.7": _open_sizes, "11.6": _differing,
    "09.11": _gradients, "09.6": _accumulated, "09.7": _shards, "meters": _meters,
    "05.4": _gain, "08.4": _tiles,
}

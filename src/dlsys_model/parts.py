"""The parts: which exercise stands where in the model, whose answer it is, and what else stands in.

A part is *yours* where the last check of its exercise passed. Whatever else there is in a
worksheet, its place is taken by the named stand-in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

from dlsys_helpers import paths
from dlsys_model.errors import ModelError

PLACES = ("data", "model", "training", "two processes", "adapters", "compression", "meters")


class Part(NamedTuple):
    """An exercise as a part.

    place: one of PLACES. used: what calls it, and for what. standin: what takes its place.
    like: number of the argument whose shape, dtype and device the result must have.
    """

    id: str
    function: str
    place: str
    used: str
    standin: str
    like: int | None = None


OURS = "no library has it: lines of ours, for this model only"

CATALOGUE = (
    Part("12.9", "class_numbers", "data", "Text: a number for each letter", OURS),
    Part("09.5", "epoch_indices", "data", "Training: the order of the rows, on one rank or two",
         "torch.utils.data.DistributedSampler"),
    Part("06.7", "split_groups", "data", "second text: pairs to train and pairs to test",
         "sklearn.model_selection.GroupShuffleSplit"),
    Part("10.3", "fit_text", "data", "second text: prompt and answer in one row", "torch.cat"),
    Part("10.6", "lm_labels", "data", "second text: only the answer is learned", "torch.where"),
    Part("08.10", "decode_step", "model", "Block.attend: attention in training, cache in writing",
         "F.scaled_dot_product_attention", 0),
    Part("08.2", "decoder_mask", "model", "Network.forward: rows of padded texts",
         "torch.ones(...).tril()"),
    Part("01.2", "to_probs", "model", "write: logits to probabilities of letters",
         "torch.softmax", 0),
    Part("04.1", "decay_groups", "training", "Training: which weights decay", OURS),
    Part("04.6", "warmup_cosine", "training", "Training: the rate of each step",
         "torch.optim.lr_scheduler: LinearLR, then CosineAnnealingLR"),
    Part("04.8", "adam_step", "training", "Training: the update", "torch.optim.AdamW"),
    Part("04.9", "lion_step", "training", 'Training with rule="lion": the update', OURS),
    Part("03.2", "class_loss", "training", "Training: the loss", "F.cross_entropy"),
    Part("03.1", "ce_from_logits", "training",
         "Training with by_hand=True: loss and its gradient, without autograd",
         "F.cross_entropy and autograd"),
    Part("03.3", "clipped_step", "training", "Training: backward, clipping, step",
         "torch.nn.utils.clip_grad_norm_"),
    Part("09.1", "amp_step", "training", "Training with dtype=torch.bfloat16: the step",
         "torch.autocast"),
    Part("02.4", "accum_step", "training", "Training with parts_of=2: the step in two halves",
         OURS),
    Part("05.5", "ema_update", "training", "Training: the averaged weights",
         "torch.optim.swa_utils.get_ema_multi_avg_fn"),
    Part("02.5", "evaluate", "training", "Training: loss and share of right letters",
         "F.cross_entropy in torch.inference_mode"),
    Part("12.6", "make_meter", "training", "Training: mean loss between two entries of the log",
         OURS),
    Part("12.10", "rows_to_log", "training", "Training: the log, across a resumed run", OURS),
    Part("06.3", "stop_and_best", "training", "Training: when to stop, which weights to take",
         OURS),
    Part("12.8", "save_checkpoint", "training", "Training: what a kill leaves whole",
         "torch.save, then os.replace"),
    Part("09.11", "average_grads", "two processes", "two ranks: gradients of all rows",
         "torch.Tensor.backward and all_reduce"),
    Part("09.6", "ddp_accum", "two processes", "two ranks, two batches an update",
         "DistributedDataParallel.no_sync"),
    Part("09.7", "reshard", "two processes", "a state of two ranks, read by one", "torch.chunk"),
    Part("10.1", "hits", "adapters", "LoRA: the layers that a name hits", OURS),
    Part("07.7", "freeze", "adapters", "LoRA and distillation: what does not learn",
         "Module.requires_grad_ and Module.eval"),
    Part("10.4", "passport", "adapters", "LoRA: what is trained", OURS),
    Part("04.3", "train_cosine", "adapters", "LoRA: the training",
         "torch.optim.lr_scheduler.CosineAnnealingLR"),
    Part("10.5", "load_adapter", "adapters", "LoRA: from its file into the model",
         "Module.load_state_dict"),
    Part("10.2", "merge", "adapters", "LoRA: one weight for weight and adapter", "torch.addmm",
         0),
    Part("11.5", "stored_bytes", "compression", "the table: bytes of each model",
         "torch.save, counted"),
    Part("11.1", "quantise", "compression", "the table: 8 and 4 bits", OURS),
    Part("01.5", "soft_threshold", "compression", "the table: pruned by shrinking",
         "F.softshrink", 0),
    Part("11.2", "masked_step", "compression", "the table: pruned and trained on", OURS),
    Part("11.4", "drop_inputs", "compression", "the table: a narrower MLP",
         "torch.linalg.lstsq", 0),
    Part("11.3", "kd_loss", "compression", "the student's loss",
         "F.kl_div and F.cross_entropy"),
    Part("02.3", "stop_grad", "compression", "the student: the teacher's logits",
         "Tensor.detach and clone", 0),
    Part("06.4", "keep_best", "compression", "the student: its best epoch",
         "torch.Tensor.clone of a state_dict"),
    Part("11.7", "free_dims", "compression", "ONNX: the sizes that stay open", OURS),
    Part("11.6", "disagreements", "compression", "ONNX: the program against the model",
         "torch.allclose"),
    Part("01.1", "predict", "meters", "logits without a graph", "torch.inference_mode"),
    Part("09.9", "state_bytes", "meters", "costs: weights, gradients and moments", OURS),
    Part("04.2", "step_size", "meters", "costs: how far a step moves a weight", OURS),
    Part("12.2", "layer_report", "meters", "costs: how far a step moves each layer", OURS),
    Part("09.10", "find_waits", "meters", "costs: where a step waits", OURS),
    Part("05.2", "told_apart", "meters", "audit: how much of the stream tells rows apart", OURS),
    Part("05.3", "noisy_modules", "meters", "audit: modules that differ from call to call", OURS),
    Part("05.4", "gain_for", "meters", "audit: the gain of GELU",
         'nn.init.calculate_gain, for ReLU'),
    Part("01.4", "dead_units", "meters", "audit: units that are always 0",
         "torch.count_nonzero"),
    Part("07.8", "hidden_values", "meters", "audit: weights that no optimizer sees", OURS),
    Part("07.10", "audit", "meters", "audit: model against optimizer", OURS),
    Part("08.11", "batch_dependence", "meters", "audit: rows that see each other", OURS),
    Part("09.3", "unused_names", "meters", "audit: weights without a gradient",
         "torch.autograd.grad with allow_unused"),
    Part("12.1", "first_nan_module", "meters", "audit: where a NaN arises",
         "torch.nn.modules.module.register_module_forward_hook"),
    Part("08.4", "tiled_attention", "meters", "audit: attention in tiles against attention whole",
         "F.scaled_dot_product_attention"),
)
BY_ID = {part.id: part for part in CATALOGUE}


class PartBroke(ModelError):
    """A learner's answer failed inside the model. The message names part, shapes and exercise."""

    def __init__(self, part: Part, what: str) -> None:
        super().__init__(f"part {part.id} {part.function} {what} To go on with "
                         f"{_in_place(part)} in its place: parts.without(\"{part.id}\"); your "
                         f"answer stays as it is. Its check: dlsys check {part.id}")
        self.part, self.what = part, what.rstrip(".")


def _in_place(part: Part) -> str:
    return "the stand-in" if part.standin == OURS else part.standin


class Parts:
    """The parts by name: `parts.decode_step(...)`; `parts.mine` holds the ids that are yours.

    An error in a part of the learner's becomes PartBroke; so does a result of another shape,
    dtype or device where those of an argument are due.
    """

    def __init__(self, own: dict[str, Callable] | None = None, notes: Iterable[str] = (),
                 folder: Path | None = None) -> None:
        """own: the learner's functions by exercise id. notes: why others are not among them.

        folder: of the worksheets that they come from, for another process to load.
        """
        from dlsys_model import standins

        self._own, self.notes, self.folder = dict(own or {}), tuple(notes), folder
        self.mine = frozenset(self._own)
        for part in CATALOGUE:
            fn = self._own.get(part.id)
            setattr(self, part.function,
                    guarded(part, fn) if fn else getattr(standins, part.function))

    def without(self, *ids: str) -> Parts:
        """The same parts with stand-ins for these exercises. Raises PartsError for a strange id."""
        _known(ids)
        return Parts({id: fn for id, fn in self._own.items() if id not in ids}, self.notes,
                     self.folder)

    def only(self, *ids: str) -> Parts:
        """The same parts with stand-ins for all but these exercises."""
        _known(ids)
        return Parts({id: fn for id, fn in self._own.items() if id in ids}, self.notes,
                     self.folder)

    def origin(self) -> tuple[str, list[str]]:
        """What `load` takes to make the same parts elsewhere: folder and ids."""
        return str(self.folder or paths.MY_WORK), sorted(self.mine)


class PartsError(ModelError):
    """No such part."""


def _known(ids: Iterable[str]) -> None:
    for id in ids:
        if id not in BY_ID:
            raise PartsError(f"part: got {str(id)[:40]!r}, expected an exercise that is one, such "
                             "as 08.10. All of them: dlsys parts")


def guarded(part: Part, fn: Callable) -> Callable:
    """The learner's function, whose failures name the part, what it got, and what to do."""
    @wraps(fn)
    def call(*args, **kwargs):
        try:
            result = fn(*args, **kwargs)
        except (PartBroke, KeyboardInterrupt):
            raise
        except Exception as error:
            raise PartBroke(part, f"broke in the model, with {_seen(args)}: "
                                  f"{type(error).__name__}: {_line(error)}.") from error
        if part.like is not None:
            _alike(part, args, result)
        return result
    return call


def _alike(part: Part, args: tuple, result: Any) -> None:
    """Hold the result's shape, dtype and device against the argument's that says them."""
    wanted, got = _looks(args[part.like]), _looks(result)
    if wanted != got:
        raise PartBroke(part, f"returned {got} in the model, expected {wanted}, with "
                              f"{_seen(args)}.")


def _looks(value: Any) -> str:
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        return type(value).__name__
    where = "" if value.device.type == "cpu" else f" on {value.device}"
    return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}{where}"


def _seen(args: tuple) -> str:
    """The tensors among the arguments, as shapes and dtypes."""
    found = [_looks(arg) for arg in args if hasattr(arg, "shape")]
    return ", ".join(found[:4]) or "no tensor"


def _line(error: Exception) -> str:
    """The first line of an error's text, short."""
    return (str(error).strip().split("\n") or [""])[0][:120].rstrip(". ")


def load(folder: Path | str | None = None, passed: Iterable[str] | None = None) -> Parts:
    """The parts of this learner: answers in my-work/ whose last check passed, else stand-ins.

    folder: another with worksheets. passed: ids that count as passed instead of the progress
    file's. An answer that cannot be read is replaced, and `notes` says why.
    """
    from dlsys_model import answers

    where = Path(folder) if folder else paths.MY_WORK
    own, notes = answers.functions(where, passed)
    return Parts(own, notes, where)

"""What a program computes in its first steps: data, outputs, loss, gradients, updates.

It uses torch's global hooks for modules and optimizers. The program's random numbers stay the same.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as modules
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from dlsys_same import sketch

WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.")
START, DATA, FORWARD, LOSS, GRADIENT, UPDATE, EVALUATION = KINDS = (
    "weights", "data", "forward", "loss", "gradient", "update", "evaluation")


SIZE = "norm of a weight"    # this limits how exact its update can be


class Enough(BaseException):
    """Ends a function that is compared inside a test; no `except Exception` stops it."""


def tensors(value: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in nested lists, tuples and mappings, each with a name."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif hasattr(value, "items"):
        for key, part in value.items():
            yield from tensors(part, f"{name}[{key!r}]" if name else str(key))
    elif isinstance(value, list | tuple):
        for place, part in enumerate(value):
            yield from tensors(part, f"{name}[{place}]")


def plain_name(path: str) -> str:
    """A module's or parameter's name without the parts that DDP, FSDP and compile add."""
    for wrapper in WRAPPERS:
        path = path.replace(wrapper, "")
    return path


def unwrapped(model: nn.Module) -> nn.Module:
    while True:
        inner = getattr(model, "_orig_mod", None)
        if isinstance(model, DataParallel | DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def renamed(name: str, label: str) -> str:
    """A name with the root's own label taken off: `Net.fc1.weight` is `fc1.weight`."""
    if name.startswith(f"{label}."):
        return name[len(label) + 1:]
    return f"model{name[len(label):]}" if name.startswith(label) else name


class Recorder:
    """Records `steps` optimizer steps, beginning after the first `after`.

    rounding: if above 0, every weight is multiplied by 1 + rounding or 1 - rounding
    before the first step that is recorded. `enough` is called when all steps are recorded.
    """

    def __init__(self, steps: int, after: int = 0, rounding: float = 0.0):
        self.steps, self.after, self.rounding = steps, after, rounding
        self.done = 0                          # optimizer steps made so far
        self.recorded: list[dict] = [{}]       # per step: (kind, name) -> [sketch, ...]
        self.types: dict[str, str] = {}        # name of a module -> the name of its class
        self.coarsest = 0.0                    # machine epsilon of the coarsest dtype met
        self.scale = 1.0                       # of the loss, set by a GradScaler
        self.stack: list[nn.Module] = []
        self.rows: int | None = None           # in the batch that the model gets
        self.names: dict[int, str] = {}        # id of a module or parameter -> its name
        self.roots: list[nn.Module] = []       # kept alive, so that no id is reused
        self.before: dict[int, torch.Tensor] = {}
        self.in_backward = False
        self.owner = threading.get_ident()
        self.enough: Callable[[], None] = lambda: None
        self.undo: list[Callable[[], None]] = []

    # ---- attaching

    def attach(self) -> None:
        handles = [modules.register_module_forward_pre_hook(self.enter),
                   modules.register_module_forward_hook(self.leave, with_kwargs=True),
                   register_optimizer_step_pre_hook(self.before_step),
                   register_optimizer_step_post_hook(self.after_step)]
        self.undo = [handle.remove for handle in handles]
        # Removing such a handle leaves its id here, and torch.compile then warns of a hook.
        known = modules._global_forward_hooks_with_kwargs

        def forget() -> None:
            known.pop(handles[1].id, None)

        self.undo.append(forget)
        self.replace(torch.autograd, "backward", self.backward_of)
        self.replace(torch.amp.GradScaler, "scale", self.scale_of)

    def replace(self, owner, name: str, make) -> None:
        real = getattr(owner, name)
        setattr(owner, name, functools.wraps(real)(make(real)))
        self.undo.append(lambda: setattr(owner, name, real))

    def detach(self) -> None:
        while self.undo:
            self.undo.pop()()

    # ---- what is recorded

    @property
    def recording(self) -> bool:
        return self.after <= self.done < self.after + self.steps

    def add(self, kind: str, name: str, tensor: torch.Tensor, rows: bool = False) -> None:
        with torch.no_grad():
            part = (sketch.of_rows if rows else sketch.of_tensor)(tensor)
        self.recorded[-1].setdefault((kind, name), []).append(part)

    def enter(self, module: nn.Module, args) -> None:
        if self.passes_over():
            return
        if self.stack and module is self.stack[0]:   # an error ended its last call
            self.stack.clear()
        if not self.stack and self.listens():
            self.know(module)
        self.stack.append(module)

    def passes_over(self) -> bool:
        """Whether to skip a call that is not a forward pass: traced, recomputed, or in a thread."""
        return (torch.compiler.is_compiling() or self.in_backward
                or threading.get_ident() != self.owner)

    def listens(self) -> bool:
        return self.recording or (self.done >= self.after and not torch.is_grad_enabled())

    def know(self, root: nn.Module) -> None:
        """Record the names and initial weights of a model at its first outermost call."""
        if id(root) in self.names or next(root.parameters(), None) is None:
            return
        self.roots.append(root)
        inner = unwrapped(root)
        label = type(inner).__name__
        known = sum(type(unwrapped(r)) is type(inner) for r in self.roots)
        label += f"#{known}" if known > 1 else ""
        for path, module in root.named_modules():
            name = plain_name(f"{path}.").rstrip(".")
            self.names.setdefault(id(module), f"{label}.{name}" if name else label)
            self.types[self.names[id(module)]] = type(module).__name__
        for path, parameter in root.named_parameters():
            if id(parameter) in self.names:
                continue
            self.names[id(parameter)] = f"{label}.{plain_name(path)}"
            self.shake(parameter)
            if self.recording:
                self.add(START, self.names[id(parameter)], parameter)

    @torch.no_grad()
    def shake(self, parameter: torch.Tensor) -> None:
        """Change each weight by as much as rounding may change it."""
        if not self.rounding or not parameter.is_floating_point():
            return
        g = torch.Generator().manual_seed(len(self.names))
        sign = torch.randint(2, parameter.shape, generator=g) * 2 - 1
        change = 1 + self.rounding * sign.double()
        parameter.copy_(parameter.double() * change.to(parameter.device))

    def leave(self, module: nn.Module, args, kwargs, output) -> None:
        if self.passes_over():
            return
        if self.stack and self.stack[-1] is module:
            self.stack.pop()
        if output is None or not self.listens() or id(module) not in self.names:
            return
        inputs = list(tensors({**{str(k): value for k, value in enumerate(args)}, **kwargs}))
        for _, tensor in tensors(output):
            if tensor.is_floating_point():
                self.coarsest = max(self.coarsest, torch.finfo(tensor.dtype).eps)
        rows = next((len(t) for _, t in inputs if t.dim()), None)
        name = self.names[id(module)]
        if not torch.is_grad_enabled():
            if not self.stack:
                self.add_rows(EVALUATION, name, output, rows)
            return
        self.add_rows(FORWARD, name, output, rows)
        if not self.stack:
            for where, tensor in inputs:
                self.add_rows(DATA, f"{name}, input {where}", tensor, rows)

    def add_rows(self, kind: str, name: str, value, rows: int | None) -> None:
        """Record row by row if there are as many rows as in the batch, else as a whole."""
        for where, tensor in tensors(value):
            full = f"{name}{where}" if where.startswith("[") or not where else f"{name}[{where!r}]"
            self.add(kind, full, tensor, rows=tensor.dim() > 0 and len(tensor) == rows)

    def backward_of(self, real):
        def backward(tensors_, *args, **kwargs):
            if threading.get_ident() != self.owner or self.in_backward:
                return real(tensors_, *args, **kwargs)
            if self.recording:
                for loss in [tensors_] if isinstance(tensors_, torch.Tensor) else tensors_:
                    self.add(LOSS, "loss", loss / self.scale)
            self.in_backward = True
            try:
                return real(tensors_, *args, **kwargs)
            finally:
                self.in_backward = False
        return backward

    def scale_of(self, real):
        def scale(scaler, outputs):
            scaled = real(scaler, outputs)
            self.scale = scaler.get_scale()
            return scaled
        return scale

    # ---- steps

    def parameters(self, optimizer) -> Iterator[tuple[str, torch.Tensor]]:
        place = 0
        for group in optimizer.param_groups:
            for p in group["params"]:
                yield self.names.get(id(p), f"parameter {place} of the optimizer"), p
                place += 1

    def before_step(self, optimizer, args, kwargs) -> None:
        if not self.recording:
            return
        self.before = {}
        for name, p in self.parameters(optimizer):
            if p.grad is not None:
                self.add(GRADIENT, name, p.grad)
                self.before[id(p)] = p.detach().clone()

    def after_step(self, optimizer, args, kwargs) -> None:
        if self.recording:
            for name, p in self.parameters(optimizer):
                if id(p) in self.before:
                    self.add(UPDATE, name, p.detach() - self.before[id(p)])
                    self.add(SIZE, name, p.detach().norm())
            self.recorded.append({})
        self.before = {}
        self.done += 1
        if self.done == self.after + self.steps:
            self.enough()

    def record(self) -> dict:
        """What was recorded, for `compare`. An unfinished step counts: it may be an evaluation.

        A single model is called "model", so that two programs may wrap it in other classes.
        """
        steps = [step for step in self.recorded if step]
        types = self.types
        if len(self.roots) == 1:
            label = self.names[id(self.roots[0])]
            steps = [{(kind, renamed(name, label)): parts for (kind, name), parts in step.items()}
                     for step in steps]
            types = {renamed(name, label): kind for name, kind in types.items()}
        return {"steps": steps, "done": self.done, "types": types, "coarsest": self.coarsest,
                "world": int(os.environ.get("WORLD_SIZE") or 1)}

    def save(self, file: str) -> None:
        """Write the record, unless this process computed nothing, as a launcher or a worker."""
        if self.recorded[0]:
            torch.save(self.record(), file)

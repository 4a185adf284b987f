"""Where the watch listens: attributes of torch, replaced by wrappers that call what was there.

Under torch.compile `is_compiling()` is true while a function is traced, so what is compiled holds
the real functions alone.
"""

from __future__ import annotations

import functools
import weakref
from threading import get_ident

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import prune
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.data.distributed import DistributedSampler

from dlsys_watch import places, tell
from dlsys_watch.patching import Patches
from dlsys_watch.tensor_calls import TensorCalls

is_compiling = torch.compiler.is_compiling
INITIALISATIONS = ("uniform_", "normal_", "trunc_normal_", "constant_", "ones_", "zeros_", "eye_",
                   "xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "kaiming_normal_",
                   "orthogonal_")


class Attachment:
    """The watch's hold on torch; `off` lets go."""

    def __init__(self, watch):
        self.patches, self.calls = Patches(), TensorCalls(watch)
        for attach in (functions, gradients, optimizers, states, data, ranks):
            attach(watch, self.patches.replace)
        modules(watch, self.patches.replace, self.calls)
        self.hooks = [register_optimizer_step_pre_hook(before_step(watch)),
                      register_optimizer_step_post_hook(after_step(watch))]
        self.calls.arm_methods()

    def off(self) -> None:
        self.calls.close()
        for hook in self.hooks:
            hook.remove()
        self.patches.undo()


def modules(watch, replace, calls: TensorCalls) -> None:
    """Calls of modules: models from outside always, inner ones while a model is looked at."""
    run, compiling, thread, has_grad = watch.run, is_compiling, get_ident, torch.is_grad_enabled

    def make(real):
        def __call__(self, *args, **kwargs):
            if (compiling() or not watch.on or watch.busy or (run.stack and not run.looking)
                    or thread() != watch.owner):
                return real(self, *args, **kwargs)
            outer, grad = not run.stack, has_grad()
            if outer:
                if not watch.enters(self, grad):
                    return real(self, *args, **kwargs)
                calls.arm(run.looking)
                watch.emit("root", self, args, kwargs, grad)
            if run.looking:
                watch.emit("module", self, args, kwargs, grad)
            run.stack.append(self)
            try:
                output = real(self, *args, **kwargs)
            finally:
                run.stack.pop()
            if run.looking:
                watch.emit("module_done", self)
            if outer:
                watch.emit("root_done", self, output, grad)
            return output
        return __call__

    def make_compile(real):
        def compile(*args, **kwargs):
            calls.close()  # Dynamo knows torch's functions by identity
            return real(*args, **kwargs)
        return compile

    replace(nn.Module, "__call__", make)
    replace(torch, "compile", make_compile)
    replace(torch.export, "export", make_compile)


def telling(watch, teller):
    """A maker of wrappers that hand a call's arguments to `teller` first."""
    compiling = is_compiling

    def make(real):
        def function(*args, **kwargs):
            if not compiling() and watch.wants_step_events():
                watch.tell(teller, args, kwargs)
            return real(*args, **kwargs)
        return function
    return make


def telling_builtin(watch, name: str, teller):
    """The same for a builtin, attention and logsigmoid.

    Tensors and modes that take over torch's functions are told the builtin, and compare it with
    what stands in torch.nn.functional: for them the builtin stands there.
    """
    compiling, overridden, functional = is_compiling, torch.overrides.has_torch_function, F

    def make(real):
        def function(*args, **kwargs):
            if not compiling() and watch.wants_step_events():
                watch.tell(teller, args, kwargs)
            if not compiling() and overridden((*args, *kwargs.values())):
                stood = getattr(functional, name)
                setattr(functional, name, real)
                try:
                    return real(*args, **kwargs)
                finally:
                    setattr(functional, name, stood)
            return real(*args, **kwargs)
        return function
    return make


def functions(watch, replace) -> None:
    """Losses, dropout, attention and logsigmoid of torch.nn.functional."""
    for name in tell.LOSSES:
        teller = functools.partial(tell.loss, name)
        replace(F, name, telling(watch, teller))
    for name in tell.DROPOUTS:
        teller = functools.partial(tell.dropout, name)
        replace(F, name, telling(watch, teller))
    for name, builtin in (("scaled_dot_product_attention", tell.attention),
                          ("logsigmoid", tell.logsigmoid)):
        replace(F, name, telling_builtin(watch, name, builtin))


def gradients(watch, replace) -> None:
    """Backward passes, checkpoints, clipping, pruning, and the scaler of mixed precision."""
    run, compiling, has_grad = watch.run, is_compiling, torch.is_grad_enabled
    begins, done = tell.backward, tell.backward_done

    def make(real):
        def backward(*args, **kwargs):
            inner = run.in_backward   # of a reentrant checkpoint, inside of the program's own
            if not inner and watch.wants_step_events():
                watch.tell(begins, args, kwargs)
            run.in_backward = True
            try:
                answer = real(*args, **kwargs)
            finally:
                run.in_backward = inner
            if inner:
                return answer
            run.backwards += 1
            if watch.wants_step_events():
                watch.tell(done, args, kwargs)
            return answer
        return backward

    def clipping(kind):
        teller = functools.partial(tell.clip, kind)

        def make(real):
            def clip(parameters, *args, **kwargs):
                if hasattr(parameters, "__next__"):    # it is read twice
                    parameters = list(parameters)
                if watch.wants_step_events():
                    watch.tell(teller, (parameters, *args), kwargs)
                return real(parameters, *args, **kwargs)
            return clip
        return make

    def make_checkpoint(real):
        def checkpoint(function=None, *args, **kwargs):
            if function is None or not has_grad() or compiling() or (
                    not watch.wants_step_events()):
                return real(function, *args, **kwargs)
            watch.emit("checkpoint", function, kwargs)
            answer = real(function, *args, **kwargs)
            watch.emit("checkpoint_done", function, kwargs)
            return answer
        return checkpoint

    def make_scale(real):
        def scale(self, outputs):
            scaled = real(self, outputs)
            watch.emit("scale", self, scaled)
            return scaled
        return scale

    replace(torch.autograd, "backward", make)
    for kind in ("norm", "value"):
        replace(nn.utils, f"clip_grad_{kind}_", clipping(kind))
    replace(prune, "remove", after(watch, "pruned"))
    replace(torch.utils.checkpoint, "checkpoint", make_checkpoint)
    scaler = torch.amp.GradScaler
    replace(scaler, "scale", make_scale)
    replace(scaler, "unscale_", before(watch, "unscale"))
    replace(scaler, "step", around(watch, "scaled_step", "scaled_done"))


def before(watch, event: str, most: int | None = None):
    """A maker of wrappers that emit an event before the call, with the first `most` arguments."""
    def make(real):
        def function(*args, **kwargs):
            watch.emit(event, *args[:most])
            return real(*args, **kwargs)
        return function
    return make


def after(watch, event: str, most: int | None = None):
    """The same, after the call."""
    def make(real):
        def function(*args, **kwargs):
            answer = real(*args, **kwargs)
            watch.emit(event, *args[:most])
            return answer
        return function
    return make


def around(watch, event: str, done: str):
    """Both."""
    return lambda real: after(watch, done)(before(watch, event)(real))


def optimizers(watch, replace) -> None:
    """The making of optimizers, zero_grad, and schedulers."""
    here = places.here

    def make(real):
        def __init__(self, *args, **kwargs):
            real(self, *args, **kwargs)
            if watch.may_inspect():
                watch.run.opt(self).place = here()
                watch.emit("optimizer", self)
        return __init__

    def make_zero(real):
        def zero_grad(self, *args, **kwargs):
            if watch.wants_step_events():
                watch.emit("zero", self)
            return real(self, *args, **kwargs)
        return zero_grad

    replace(Optimizer, "__init__", make)
    replace(Optimizer, "zero_grad", make_zero)
    replace(nn.Module, "zero_grad", make_zero)
    replace(LRScheduler, "__init__", after(watch, "scheduler", 1))
    replace(LRScheduler, "step", before(watch, "schedule"))


def before_step(watch):
    def hook(optimizer, args, kwargs):
        closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
        run = watch.run
        run.in_step = True
        run.opt(optimizer)
        run.resting = run.settled and not run.looked
        watch.emit("step", optimizer, closure)
    return hook


def after_step(watch):
    def hook(optimizer, args, kwargs):
        run = watch.run
        known, run.in_step = run.opt(optimizer), False
        known.steps, run.steps = known.steps + 1, run.steps + 1
        if run.model is not None:
            run.trained.add(run.model)
        watch.emit("step_done", optimizer)
        run.looked = False
        known.last_backward = run.backwards
    return hook


def states(watch, replace) -> None:
    """State dicts: taken, loaded, saved."""
    def make_state(real):
        def state_dict(self, *args, **kwargs):
            into = args[0] if args else kwargs.get("destination")
            before = set(into) if into and not kwargs.get("prefix") else ()
            state = real(self, *args, **kwargs)
            if before:
                watch.emit("state_into", self, before, state)
            elif not args and not kwargs.get("prefix"):
                watch.emit("state", self, state)
            return state
        return state_dict

    def make_load(real):
        def load_state_dict(self, state_dict, *args, **kwargs):
            watch.emit("loading", self, state_dict)
            result = real(self, state_dict, *args, **kwargs)
            watch.emit("loaded", self, state_dict, result)
            return result
        return load_state_dict

    def make_read(real):
        def load(*args, **kwargs):
            held = real(*args, **kwargs)
            watch.emit("read", held)
            return held
        return load

    replace(torch, "load", make_read)
    for name in INITIALISATIONS:
        replace(nn.init, name, before(watch, "init", 1))
    replace(Optimizer, "load_state_dict", after(watch, "resumed", 2))
    replace(nn.Module, "to_empty", around(watch, "emptying", "emptied"))
    replace(nn.Module, "state_dict", make_state)
    replace(nn.Module, "load_state_dict", make_load)
    replace(torch, "save", before(watch, "save"))


def data(watch, replace) -> None:
    """Loaders: where they are made, their passes and batches."""
    run, here, is_pass, ref = watch.run, places.here, _BaseDataLoaderIter, weakref.ref

    def make_init(real):
        def __init__(self, *args, **kwargs):
            real(self, *args, **kwargs)
            if watch.may_inspect():
                run.loader_places[self] = here()
        return __init__

    def make_iter(real):
        def __iter__(self):
            watch.emit("loader", self)
            iterator = real(self)
            if watch.may_inspect() and isinstance(iterator, is_pass):
                keeps = self.persistent_workers    # it knows its iterator: no cycle
                run.loaders[iterator] = [ref(self) if keeps else lambda: self, 0]
                watch.emit("pass_", self)
            return iterator
        return __iter__

    def make_next(real):
        def __next__(self):
            batch = real(self)
            if watch.may_inspect() and self in run.loaders:
                loader, number = run.loaders[self][0](), run.loaders[self][1]
                run.loaders[self][1] += 1
                if loader is not None:
                    run.loader = ref(loader)
                    watch.emit("batch", loader, batch, number)
            return batch
        return __next__

    replace(DataLoader, "__init__", make_init)
    replace(DataLoader, "__iter__", make_iter)
    replace(_BaseDataLoaderIter, "__next__", make_next)


def ranks(watch, replace) -> None:
    """Several processes that train together."""
    replace(DistributedSampler, "__iter__", before(watch, "sampler"))
    replace(DistributedDataParallel, "__init__", after(watch, "wrapped", 1))
    if torch.distributed.is_available():
        replace(torch.distributed, "all_reduce", before(watch, "reduce"))

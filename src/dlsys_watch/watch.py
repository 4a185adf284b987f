"""The watch itself: it passes events to the rules, and keeps the rules from doing harm."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import traceback
import warnings

import torch
from torch.utils._device import DeviceContext

from dlsys_watch import places
from dlsys_watch.report import Report
from dlsys_watch.rules import all_rules
from dlsys_watch.run import Run


class Watch:
    """The rules of one run. `emit` is called at every event, from the thread that trains."""

    def __init__(self, settings, report: Report | None = None):
        self.settings, self.report = settings, report or Report(settings)
        self.run = Run()
        self.on = True
        self.enough = self.end   # what to call when all steps that were asked for are made
        self.busy = False      # a rule is at work: what it calls is no event
        self.owner = threading.get_ident()
        self.quiet = ("ignore", self, Warning, None, 0)
        self.handlers: dict[str, list] = {}   # event -> (rule, method)
        self.awake: dict[str, list] = {}      # those of them that hear of every step
        self.add(self.run.tokens)
        for kind in all_rules():
            if kind.id not in settings.silence and (kind.sound or settings.hints):
                self.add(kind(self))

    def add(self, rule) -> None:
        """Let a rule hear of its events, or of those alone before which it sees nothing."""
        if not rule.begins:
            self.listen(rule)
        for event in rule.begins:
            self.hear(rule, event, functools.partial(self.begin, rule, event))

    def listen(self, rule) -> None:
        for name in dir(rule):
            if name.startswith("on_"):
                self.hear(rule, name[3:], getattr(rule, name))

    def hear(self, rule, event: str, handle) -> None:
        self.handlers.setdefault(event, []).append((rule, handle))
        if event not in rule.rests:
            self.awake.setdefault(event, []).append((rule, handle))

    def begin(self, rule, event: str, *facts) -> None:
        """The first of the events that a rule waits for: it hears of it and of all that follow."""
        self.remove(rule)
        self.listen(rule)
        getattr(rule, f"on_{event}", lambda *facts: None)(*facts)

    def remove(self, rule) -> None:
        for handlers in (*self.handlers.values(), *self.awake.values()):
            handlers[:] = [pair for pair in handlers if pair[0] is not rule]

    def may_inspect(self) -> bool:
        """Whether an event may be looked at now, in this thread, by reading tensors."""
        return (self.on and not self.busy and threading.get_ident() == self.owner
                and not torch._C._autograd._profiler_enabled()   # it would count what is read
                and torch._C._len_torch_dispatch_stack() == 0
                and torch._C._functorch.peek_interpreter_stack() is None
                and torch._C._get_tracing_state() is None
                and not looked_on())

    def wants_step_events(self) -> bool:
        """Whether a call that every training step makes is worth an event.

        Once all is settled, of these only those of the steps that are looked at again.
        """
        return not (self.run.settled and torch.is_grad_enabled()) and self.may_inspect()

    def emit(self, event: str, *facts) -> None:
        """Let the rules look at what happened. Nothing that they do or raise gets out."""
        handlers = (self.awake if self.run.resting else self.handlers).get(event)
        if not handlers or not self.may_inspect():
            return
        self.busy, grad = True, torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        warnings.filters.insert(0, self.quiet)   # type: ignore[attr-defined]
        try:
            if torch._C._len_torch_function_stack():   # a default device: not for what rules make
                with torch._C.DisableTorchFunction():
                    self.dispatch(handlers, facts)
            else:
                self.dispatch(handlers, facts)
        finally:
            with contextlib.suppress(ValueError):
                warnings.filters.remove(self.quiet)   # type: ignore[attr-defined]
            torch._C._set_grad_enabled(grad)
            self.busy = False

    def match(self, text: str) -> bool:
        """Whether a warning comes from a rule at work, as the pattern of a filter is asked.

        What rules ask of torch may warn. The filter stands there while they do so, and the version
        of the filters does not change: it would make `warnings` forget what it has shown.
        """
        return self.busy and threading.get_ident() == self.owner

    def dispatch(self, handlers: list, facts: tuple) -> None:
        """Call each handler with the facts; one that fails is left out from now on."""
        for rule, handle in tuple(handlers):
            try:
                handle(*facts)
            except Exception as error:
                self.drop(rule, error)

    def enters(self, module, grad: bool) -> bool:
        """A module is called from outside: whether it is a model, with weights of its own."""
        if self.settings.steps is not None and self.run.steps >= self.settings.steps:
            self.run.cut = True
            self.enough()
            return False
        try:
            if not self.run.called(module).has_weights:
                return False
            self.run.enter(module, grad)
        except Exception as error:  # a module that cannot be hashed, or refers to no more
            self.report.failed["modules"] = f"{type(error).__name__}: {error}"
            return False
        return True

    def tell(self, teller, args: tuple, kwargs: dict) -> None:
        """Let `teller` make an event of a call's arguments, whatever they are."""
        try:
            teller(self, *args, **kwargs)
        except Exception as error:
            name = getattr(teller, "func", teller).__name__
            self.report.failed[name] = f"{type(error).__name__}: {error}"

    def drop(self, rule, error: Exception) -> None:
        """Leave out a rule that failed; --debug says so at the end."""
        *_, (frame, line) = traceback.walk_tb(error.__traceback__)
        where = f"{os.path.basename(frame.f_code.co_filename)}:{line}"
        self.report.failed[rule.id] = f"{type(error).__name__}: {error} ({where})"
        self.remove(rule)

    def say(self, rule, message: str, place, trap: str = "") -> None:
        self.report.add(rule, message, place or places.here(), trap)

    def end(self) -> None:
        """The run is over: rules that had to see all of it speak now."""
        self.emit("end")
        self.on = False
        self.report.gather()
        if self.settings.debug:
            for rule, error in self.report.failed.items():
                self.report.print(f"dlsys watch: the rule {rule} failed and was left out: {error}")


def looked_on() -> bool:
    """Whether a mode of the program's own sees every call; a default device is none of these."""
    depth = torch._C._len_torch_function_stack()
    return any(type(torch._C._get_function_stack_at(i)) is not DeviceContext for i in range(depth))

"""What is known of the run so far: models, optimizers, steps. It holds no tensor alive."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from dlsys_watch.tokens import Tokens

SETTLED = 250  # steps after the last new model or optimizer
WARM_UP = 8   # calls of a model, in training and in evaluation, that are looked at one by one
AGAIN = {True: 128, False: 64}   # afterwards each that many, with and without gradients
OPTIMIZERS = 6  # so many new ones make it look at the next calls again
TURNS = 16     # and so many calls of a model in the other mode, train or eval, are looked at


@dataclass
class Called:
    """A model as it was called from outside: modes, counts and places."""

    has_weights: bool
    moody: list = field(default_factory=list)     # weakrefs of layers that differ in eval mode
    names: dict = field(default_factory=dict)     # id of a module -> its name in the model
    calls: dict = field(default_factory=lambda: {True: 0, False: 0})  # with and without gradients
    modes: dict = field(default_factory=dict)     # with and without gradients -> train mode
    turns: int = 0                                # calls in another mode than the one before


@dataclass
class Opt:
    """An optimizer: its steps, and what is known of its gradients."""

    place: object = None
    steps: int = 0
    last_backward: int = 0     # number of the backward pass before its last step


class Run:
    """Facts that several rules need."""

    def __init__(self):
        self.steps = self.backwards = self.grad_calls = 0
        self.looking = True          # inner modules are inspected as well
        self.settled, self.newest = False, 0   # newest: steps when a model or optimizer was new
        self.looked = True           # a call since the last step was looked at
        self.resting = False         # rules hear only of what they need of every step
        self.stack = []              # modules that are running, the outermost first
        self.models = weakref.WeakKeyDictionary()   # module -> Called
        self.optimizers = weakref.WeakKeyDictionary()   # optimizer -> Opt
        self.trained = weakref.WeakSet()   # models that ran with gradients before a step
        self._model = None           # the last model that ran with gradients
        self.model_grad = False      # whether the last model to run did so with gradients
        self.loader = None           # weakref of the loader whose batches come
        self.loaders = weakref.WeakKeyDictionary()   # iterator -> [how to get its loader, batches]
        self.loader_places = weakref.WeakKeyDictionary()   # loader -> where it was made
        self.in_step = self.in_backward = False
        self.made = self.again = 0   # optimizers; calls after a new one that are looked at
        self.cut = False             # the watch ends before the run does
        self.tokens = Tokens(self)

    def called(self, module: nn.Module) -> Called:
        """What is known of a module that was called from outside."""
        known = self.models.get(module)
        if known is None:
            known = self.models[module] = Called(next(module.parameters(), None) is not None)
            if known.has_weights:
                self.newest, self.settled = self.steps, False
                known.moody = [weakref.ref(m) for m in module.modules() if is_moody(m)]
                known.names = {id(m): name for name, m in module.named_modules()}
        return known

    @property
    def model(self) -> nn.Module | None:
        """The last model that ran with gradients."""
        return self._model() if self._model is not None else None

    def enter(self, module: nn.Module, grad: bool) -> None:
        """A model is called from outside."""
        known = self.called(module)
        known.calls[grad] += 1
        count = known.calls[grad]
        turned = known.modes.get(grad) is not module.training
        known.modes[grad], known.turns = module.training, known.turns + turned
        self.looking = (count <= WARM_UP or count % AGAIN[grad] == 0
                        or (grad and self.again > 0) or (turned and known.turns <= TURNS))
        self.again -= grad and self.again > 0
        self.settled = not self.looking and self.steps > self.newest + SETTLED
        self.looked = self.looked or not self.settled
        self.resting = grad and not self.looked
        self.model_grad = grad
        if grad:
            self._model, self.grad_calls = weakref.ref(module), self.grad_calls + 1

    def opt(self, optimizer) -> Opt:
        """What is known of an optimizer."""
        known = self.optimizers.get(optimizer)
        if known is None:
            known = self.optimizers[optimizer] = Opt()
            self.made += 1
            self.again = WARM_UP if self.made <= OPTIMIZERS else self.again
            self.newest, self.settled = self.steps, False
        return known

    def active(self, module: nn.Module) -> list:
        """Dropout and batch-norm layers of a model that are in train mode."""
        return [m for ref in self.called(module).moody if (m := ref()) is not None and m.training]

    def name(self, module: nn.Module) -> str:
        """A module's name in the model that holds it, else its class."""
        for known in list(self.models.values()):
            if name := known.names.get(id(module)):
                return f"`{name}` ({type(module).__name__})"
        return f"a {type(module).__name__}"

    def held(self) -> set[int]:
        """Ids of all tensors that an optimizer holds."""
        return {id(p) for optimizer in list(self.optimizers) for p in params(optimizer)}


def is_moody(module: nn.Module) -> bool:
    """Whether a layer computes something else in eval mode."""
    if isinstance(module, _BatchNorm):
        return module.track_running_stats
    return isinstance(module, _DropoutNd) and module.p > 0


def params(optimizer) -> list:
    """All tensors of an optimizer, in order."""
    return [p for group in optimizer.param_groups for p in group["params"]]

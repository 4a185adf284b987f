"""Dropout that an evaluation switches off for good."""

from dlsys_watch import places
from dlsys_watch.rule import Rule


class DropoutForgotten(Rule):
    id, trap = "dropout-forgotten", "05.3"
    reads = "rates of dropout that a forward pass in eval mode changes, and the training after it"

    def __init__(self, watch):
        super().__init__(watch)
        self.rates, self.gone = {}, {}   # (id of a module, name) -> rate; -> where it went

    def on_module(self, module, args, kwargs, grad):
        for name, rate in rates(module):
            key = id(module), name
            if module.training and rate == 0 and key in self.gone and grad:
                rate, line = self.gone.pop(key)
                self.say(f"{type(module).__name__}.{name} was {rate:g} and is 0 since a forward "
                         "pass in eval mode: nothing is dropped in training any more", line)
            elif rate > 0:
                self.rates[key] = rate

    def on_module_done(self, module):
        for name, rate in rates(module):
            key = id(module), name
            if not module.training and rate == 0 and key in self.rates:
                self.gone[key] = self.rates.pop(key), begin(type(module).forward)


def begin(function):
    """The line where a function begins; None for one without code of its own."""
    code = getattr(function, "__code__", None)
    return code and places.Place(code.co_filename, code.co_firstlineno)


def rates(module) -> list:
    """The numbers that a module of the program's own holds for dropout."""
    if type(module).__module__.startswith("torch."):
        return []
    return [(name, value) for name, value in vars(module).items()
            if "drop" in name.lower() and isinstance(value, float)]

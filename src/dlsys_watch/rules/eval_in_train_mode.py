"""Measuring with dropout and batch statistics on."""

import weakref

import torch

from dlsys_watch.rule import Rule
from dlsys_watch.values import counted, first_tensor

ROW = 5  # steps between two measurements: a pseudo-label is asked for at every step


class EvalInTrainMode(Rule):
    id, trap = "eval-in-train-mode", "01.1"
    reads = "layers in train mode where outputs without gradients reach a loss or an argmax"
    rests = ("root", "root_done")

    def __init__(self, watch):
        super().__init__(watch)
        self.answer = None    # storage of the last output, its model, line
        self.calls = 0        # with gradients, of all models, when it was asked for
        self.asks = weakref.WeakKeyDictionary()   # model -> (steps, and how many since the last
                                                  # time) when it ran in train mode, no gradients
        self.last = weakref.WeakKeyDictionary()   # model -> (steps, input) at the last measurement
        self.again = weakref.WeakSet()     # asked several times for the same input: on purpose

    def on_root_done(self, module, output, grad):
        self.answer = None
        if grad or not module.training or module not in self.run.trained:
            return
        steps = self.asks.get(module, (0, 0))[0]
        if steps < self.run.steps:
            self.asks[module] = self.run.steps, self.run.steps - steps
        values = first_tensor(output, floating=True)
        if values is not None and self.run.active(module):
            self.answer = storage(values), weakref.ref(module), self.here()
            self.calls = self.run.grad_calls

    def on_root(self, module, args, kwargs, grad):
        self.asked = next((id(a) for a in args if torch.is_tensor(a)), None)

    def on_loss(self, loss):
        if not loss.grad:
            self.measured(loss.input)

    def on_choose(self, tensor):
        self.measured(tensor)

    def on_compare(self, tensor, threshold):
        self.measured(tensor)

    def on_arithmetic(self, sign, left, right, answer):
        if sign == "-" and torch.is_tensor(right):
            self.measured(left)
            self.measured(right)

    def on_softmax(self, values, answer, dim):
        """Probabilities stand for the logits that they were made of; a sigmoid's, too."""
        if self.answer is not None and storage(values) == self.answer[0]:
            self.answer = storage(answer), *self.answer[1:]

    def measured(self, tensor):
        if self.answer is None or storage(tensor) != self.answer[0] or (
                self.calls != self.run.grad_calls):    # its memory may be another tensor's by now
            return
        (_, ref, line), self.answer = self.answer, None
        module = ref()
        if module is None:
            return
        steps, asked = self.last.get(module, (0, None))
        if steps == self.run.steps and asked == self.asked:
            self.again.add(module)
        self.last[module] = self.run.steps, self.asked
        if module in self.again or self.asks[module][1] < ROW:
            return
        count = len(self.run.active(module))
        self.say(f"{type(module).__name__} is measured in train mode: "
                 f"{counted(count, 'dropout or batch-norm layer')} active. model.eval() is missing",
                 line)


def storage(tensor) -> int:
    """Where a tensor's numbers lie: the same for all its views."""
    return tensor.untyped_storage().data_ptr()

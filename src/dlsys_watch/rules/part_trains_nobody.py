"""A part of the loss that does not reach the weights which the next step moves."""


from torch.optim import Optimizer

from dlsys_watch.graphs import leaves, leaves_of, nodes_before, summands
from dlsys_watch.rule import Rule
from dlsys_watch.run import params
from dlsys_watch.values import counted

ROW, LOOKS, MOST = 3, 12, 4000   # LOOKS: passes of a line; MOST: operations of a part
WATCHED = 400   # backward passes of the run


class PartTrainsNobody(Rule):
    id, trap = "part-trains-nobody", "02.3"
    reads = "the parts of a summed loss, and whether a step uses the gradients of each"

    def __init__(self, watch):
        super().__init__(watch)
        self.parts = self.line = None   # leaves of each part of the loss that backward ran from
        self.waiting = None     # what a step left unused: (leaves, line of the loss, of a detach)
        self.times, self.steppers = {}, {}   # line of a loss -> times; -> id of the optimizer
        self.cuts, self.cut = [], []    # (line, leaves) of detach(): since the last backward pass,
                                        # and before it

    def on_detach(self, tensor):
        if (place := self.here()) and self.seldom(("detach", place), LOOKS, 10**9):
            self.cuts.append((place, {id(leaf) for leaf in leaves(tensor, 2000)}))

    def on_backward(self, tensors, kept):
        self.cut, self.cuts = self.cuts, []
        self.parts, node = None, tensors[0].grad_fn
        if node is None or kept or self.run.backwards > WATCHED:
            return
        self.line = self.here()
        if not self.seldom(self.line, LOOKS, 10**9):
            return
        found = [nodes_before(part, MOST) for part in summands(node)]
        if len(found) > 1 and all(len(part) < MOST for part in found):
            self.parts = [{id(leaf) for leaf in leaves_of(part)} for part in found]

    def on_step(self, optimizer, closure):
        if self.waiting is None and not self.parts:
            return
        held = {id(p) for p in params(optimizer)}
        if self.waiting is not None and self.waiting[0] & held:
            self.times[self.waiting[1]] = -10**9    # they are used after all
            self.waiting = None
        parts, self.parts = self.parts, None
        if not parts or closure is not None:
            return
        if self.steppers.setdefault(self.line, id(optimizer)) != id(optimizer):
            self.times[self.line] = -10**9    # two take turns with one loss
        others = self.run.held() - held
        idle = [part for part in parts if part and part <= others]
        if idle and any(part & held for part in parts):
            cut = next((place for place, before in self.cut if before & held), None)
            self.waiting = set().union(*idle), self.line, cut

    def on_zero(self, owner, *_):
        if self.waiting is None:
            return
        owned = params(owner) if isinstance(owner, Optimizer) else list(owner.parameters())
        idle, line, cut = self.waiting
        if not idle & {id(p) for p in owned}:
            return
        self.waiting = None
        times = self.times[line] = self.times.get(line, 0) + 1
        if times == ROW:
            why = "" if cut is None else ": detach() cuts it off"
            self.say(f"a part of the loss reaches no weight that the next step moves{why}. Its "
                     f"gradients go to {counted(len(idle), 'tensor')} of another optimizer, which "
                     "erases them", cut or line)

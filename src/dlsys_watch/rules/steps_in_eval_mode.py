"""Training that continues in eval mode."""

import weakref

from dlsys_watch.rule import Rule
from dlsys_watch.run import params

ROW = 2  # steps in eval mode before it is said


class StepsInEvalMode(Rule):
    id, trap = "steps-in-eval-mode", "01.1"
    reads = "the model's mode at each step, and whether its batches come from a different loader"
    rests = ("root",)    # the first call in another mode is looked at

    def __init__(self, watch):
        super().__init__(watch)
        self.known = weakref.WeakKeyDictionary()   # model -> [steps in train, in eval, loader]
        self.place = None

    def on_root(self, module, args, kwargs, grad):
        if grad and not module.training and self.known.get(module, (0,))[0]:
            self.place = self.here() if self.seldom("root", first=200) else self.place

    def on_step(self, optimizer, closure):
        model = self.run.model
        if model is None or not self.run.model_grad:
            return
        trained, eval_row, loader = self.known.setdefault(model, (0, 0, None))
        now = self.run.loader
        if model.training:
            self.known[model] = trained + 1, 0, now
            return
        self.known[model] = trained, eval_row + 1, loader
        if not trained or eval_row + 1 != ROW:
            return
        held = {id(p) for p in params(optimizer)}
        ours = [p for p in model.parameters() if p.requires_grad and id(p) in held]
        loaders = [ref() if ref is not None else None for ref in (now, loader)]
        other = None not in loaders and loaders[0] is not loaders[1]
        if ours and (other or self.run.called(model).moody):
            self.tell(model, trained, other)

    def tell(self, model, trained, other):
        name = type(model).__name__
        if other:
            self.say(f"optimizer.step on other batches than in training: {name} is in eval mode "
                     f"and its {trained} steps in train mode took theirs from another loader")
        else:
            self.say(f"the steps go on in eval mode: {trained} steps of {name} were in train "
                     "mode, then model.train() was not called again", self.place)

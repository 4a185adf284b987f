"""A Dropout that model.eval() does not reach."""

from torch.nn.modules.dropout import _DropoutNd

from dlsys_watch.rule import Rule


class DropoutMadeInForward(Rule):
    id, trap = "dropout-made-in-forward", "05.3"
    reads = "dropout layers that run inside a module in eval mode and are not part of the model"

    def on_module(self, module, args, kwargs, grad):
        if not isinstance(module, _DropoutNd) or not module.training or not module.p:
            return
        stack = self.run.stack
        if not stack or stack[-1].training or stack[0].training:
            return
        if not any(module is known for known in stack[0].modules()):
            self.say(f"{type(module).__name__}(p={module.p}) drops although "
                     f"{type(stack[-1]).__name__} is in eval mode: it is not registered in the "
                     "model, so eval() does not reach it")

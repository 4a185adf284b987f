"""Weight decay on the gains of normalization layers."""

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from dlsys_watch.rule import Rule

NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


class NormDecayed(Rule):
    id, trap = "norm-decayed", "04.1"
    reads = "the parameter group of each normalization weight, if one group has no decay"
    rests = ("step",)

    def on_step(self, optimizer, closure):
        known = self.run.opt(optimizer)
        if known.steps != 2:
            return
        decays = [group.get("weight_decay", 0) for group in optimizer.param_groups]
        if len(decays) < 2 or not min(decays) == 0 < max(decays):
            return
        norms = {id(p) for model in list(self.run.models) for m in model.modules()
                 if is_norm(m) for p in m.parameters(recurse=False)}
        wrong = [p for group, decay in zip(optimizer.param_groups, decays, strict=True)
                 if decay for p in group["params"] if id(p) in norms and p.requires_grad]
        if wrong:
            self.say(f"{len(wrong)} weights of normalisation layers are in a group with "
                     f"weight_decay {max(decays)}, although another group has 0",
                     known.place)


def is_norm(module) -> bool:
    """Whether a module normalizes: torch's own, or one that is named so."""
    return isinstance(module, NORMS) or type(module).__name__.endswith(("LayerNorm", "RMSNorm"))

"""Log-probabilities as the target of kl_div."""

import torch

from dlsys_watch.rule import Rule


class KlLogTarget(Rule):
    id, trap = "kl-log-target", "11.3"
    reads = "the second argument of kl_div"

    def on_loss(self, loss):
        if loss.name != "kl_div" or loss.options.get("log_target") or not loss.target.dim():
            return
        target = loss.target
        if not self.seldom(self.here()) or target.numel() < 2 or target.max() > 0:
            return
        if target.min() < 0 and (target.double().exp().sum(-1) - 1).abs().max() < 1e-2:
            lowest = torch.min(target).item()
            self.say("kl_div takes probabilities second and gets their logarithms, down to "
                     f"{lowest:.1f}: log_target is False")

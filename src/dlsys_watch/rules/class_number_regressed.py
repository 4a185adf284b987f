"""A class number as a regression target."""

from dlsys_watch.rule import Rule


class ClassNumberRegressed(Rule):
    id, trap, sound = "class-number-regressed", "03.2", False
    reads = "the targets of mse_loss"

    def on_loss(self, loss):
        target = loss.target
        if loss.name != "mse_loss" or not loss.grad or target.numel() < 8:
            return
        if not self.seldom(self.here(), first=1) or target.min() < 0 or target.max() > 1000:
            return
        kinds = target.unique()
        if 3 <= len(kinds) <= 20 and (kinds == kinds.round()).all():
            self.say(f"the targets of mse_loss are {len(kinds)} whole numbers: classes? Their "
                     "distance means nothing")

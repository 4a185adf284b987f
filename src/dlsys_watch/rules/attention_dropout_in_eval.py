"""Attention that drops weights in eval mode."""

from dlsys_watch.rule import Rule
from dlsys_watch.rules.dropout_in_eval import caller


class AttentionDropoutInEval(Rule):
    id, trap = "sdpa-dropout-in-eval", "08.9"
    reads = "dropout_p of scaled_dot_product_attention, and the mode of the module that calls it"

    def on_attention(self, attention):
        module = caller() if attention.dropout > 0 else None
        if module is not None and not module.training:
            self.say(f"attention drops {attention.dropout:.0%} of its weights although "
                     f"{type(module).__name__} is in eval mode: dropout_p has no mode")

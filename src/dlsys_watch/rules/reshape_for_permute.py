"""view or reshape where axes have to be swapped."""

from dlsys_watch.rule import Rule


class ReshapeForPermute(Rule):
    id, trap = "reshape-for-permute", "07.9"
    reads = "the shapes before and after view and reshape"

    def on_view(self, before, after):
        old, new = tuple(before.shape), tuple(after.shape)
        if not before.is_contiguous():
            return
        what = exchanged(old, new)
        if what and self.seldom(self.here()):
            self.say(f"{old} is read as {new}: view and reshape keep the order in memory, so "
                     f"{what} are mixed. Exchange axes with permute or transpose")


def exchanged(old, new) -> str:
    """What a view mixes up: the same axes in another order, or heads put before tokens."""
    wide_old, wide_new = ([n for n in shape if n != 1] for shape in (old, new))
    if len(old) == len(new) > 2 and wide_old != wide_new and sorted(old) == sorted(new):
        return "rows, columns and channels" if len(old) == 4 else "the axes"
    if len(old) == 3 and len(new) == 4 and old[0] == new[0] and min(new[1:]) > 1:
        _, tokens, width = old
        heads, middle, depth = new[1:]
        if middle == tokens != heads and heads * depth == width:
            return "tokens and heads"
    return ""

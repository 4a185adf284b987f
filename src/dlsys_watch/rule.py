"""What every rule is made of: its name, the trap it tells, and what it hears of the run.

A rule is one class in one file of `dlsys_watch.rules`. It defines the methods `on_...` that it
wants to be called by; `events.py` lists them all. It never changes a tensor, never keeps one, and
never draws a random number. If it raises, it is left out for the rest of the run.
"""

from __future__ import annotations

from collections import Counter

from dlsys_watch import places


class Rule:
    """One fault, and the evidence that proves it.

    id: the name in reports and in `# dlsys: ok ID`; trap: the page that explains the fault;
    sound: whether no healthy program is known that trips it, else it is a hint; reads: what it
    looks at, in one sentence; follows: rules whose fault shows itself in this way, too: where one
    of them has spoken, this one is silent.

    Two more save time. begins: events before which there is nothing to see; the rule hears of no
    other until one of them comes. rests: what it need not hear of at steps that are not looked at,
    of "root", "root_done", "step" and "step_done"; calls without gradients come all the same.
    """

    id = trap = reads = ""
    sound = True
    follows: tuple[str, ...] = ()
    begins: tuple[str, ...] = ()
    rests: tuple[str, ...] = ()

    def __init__(self, watch):
        self.watch, self.run = watch, watch.run
        self._calls = Counter()

    def say(self, message: str, place=None, trap: str = "") -> None:
        """Report the fault at a place (file, line), else at the user's line that runs now."""
        self.watch.say(self, message, place, trap)

    def here(self):
        """The user's line that runs now, as (file, line)."""
        return places.here()

    def seldom(self, key="", first: int = 6, then: int = 50) -> bool:
        """True for the first calls with this key and for few of the later ones."""
        self._calls[key] += 1
        count = self._calls[key]
        return count <= first or count % then == 0

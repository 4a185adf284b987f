"""A graph that reaches back through all steps."""

import itertools

from dlsys_watch.graphs import nodes
from dlsys_watch.rule import Rule

ROW, MOST = 6, 20000


class GraphGrows(Rule):
    id, trap = "graph-grows", "12.6"
    reads = "how many operations a backward pass with retain_graph traverses"

    def __init__(self, watch):
        super().__init__(watch)
        self.sizes = []

    def on_backward(self, tensors, kept):
        if not kept or len(self.sizes) > 3 * ROW:
            return
        self.sizes.append(len(nodes(tensors[0], MOST)))
        last = self.sizes[-ROW:]
        grown = {b - a for a, b in itertools.pairwise(last)}
        if len(last) == ROW and len(grown) == 1 and min(grown) > 0:
            self.say(f"each backward pass goes through {grown.pop()} operations more than the one "
                     f"before, {last[-1]} now: the graph of all steps is kept. Detach what is "
                     "carried on")

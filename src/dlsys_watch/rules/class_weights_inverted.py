"""Class weights that are the frequencies of the classes, not their inverse."""

from collections import Counter

from dlsys_watch.rule import Rule

BATCHES, LABELS = 10, 200
UNEVEN, NEAR = 2, 1.5   # how far the weights differ; how well they follow the frequencies


class ClassWeightsInverted(Rule):
    id, trap = "class-weights-inverted", "06.8"
    reads = "the weights of cross_entropy, and how often each class is a target in ten batches"

    def __init__(self, watch):
        super().__init__(watch)
        self.counts, self.batches = Counter(), 0

    def on_loss(self, loss):
        weight = loss.options.get("weight")
        if not loss.grad or loss.name not in ("cross_entropy", "nll_loss") or (
                weight is None or loss.target.is_floating_point() or self.batches >= BATCHES):
            return
        self.counts.update(loss.target.flatten()[:4096].tolist())
        self.batches += 1
        if self.batches == BATCHES and self.counts.total() >= LABELS:
            self.judge(weight.detach().double().tolist())

    def judge(self, weight):
        seen = [(w, self.counts[c]) for c, w in enumerate(weight) if self.counts[c] and w > 0]
        shares = [w / count for w, count in seen]
        if len(seen) < 2 or len(seen) < len(weight):
            return
        uneven = max(w for w, _ in seen) / min(w for w, _ in seen)
        if uneven >= UNEVEN and max(shares) < NEAR * min(shares):
            most, _ = max(enumerate(weight), key=lambda pair: pair[1])
            self.say(f"the class weights, {min(weight):.2g} to {max(weight):.2g}, grow with how "
                     f"often a class occurs: class {most}, the most frequent, weighs most. Was the "
                     "inverse meant?")

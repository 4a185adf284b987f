"""Rows that fill up the ranks of an evaluation, and count twice in its result."""

from torch.utils.data.distributed import DistributedSampler

from dlsys_watch.rule import Rule


class EvaluatedTwice(Rule):
    id, trap, sound = "evaluated-twice", "09.5", False
    reads = "how many rows a DistributedSampler repeats in an evaluation"

    def on_root(self, module, args, kwargs, grad):
        loader = self.run.loader() if self.run.loader else None
        sampler = getattr(loader, "sampler", None)
        if grad or module.training or not isinstance(sampler, DistributedSampler):
            return
        more = sampler.total_size - len(sampler.dataset)  # type: ignore[arg-type]
        if more > 0 and self.seldom(id(sampler), first=1, then=10**9):
            self.say(f"the sampler of this evaluation repeats {more} of {len(sampler.dataset)} "  # type: ignore[arg-type]
                     f"rows, so that {sampler.num_replicas} ranks get equally many: they count "
                     "twice, unless you cut them off",
                     self.run.loader_places.get(loader))

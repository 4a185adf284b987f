"""Rows of the evaluation that are also trained on."""

import weakref

from torch.utils.data import Dataset, Subset

from dlsys_watch.rule import Rule

MOST = 200_000   # rows that are compared


class TrainedOnEvaluation(Rule):
    id, trap, sound = "trained-on-evaluation", "06.5", False
    reads = "the rows of a dataset that a model is trained on, and the rows that evaluate it"
    begins = ("batch",)
    rests = ("root",)

    def __init__(self, watch):
        super().__init__(watch)
        self.trained = weakref.WeakKeyDictionary()   # model -> id of a dataset -> (it, line)
        self.asked = weakref.WeakSet()    # loaders of evaluations that were looked at

    def on_root(self, module, args, kwargs, grad):
        loader = self.run.loader() if self.run.loader else None
        if loader is None:
            return
        if grad and module.training:
            known = self.trained.setdefault(module, {})
            if id(loader.dataset) not in known and isinstance(loader.dataset, Dataset):
                known[id(loader.dataset)] = (weakref.ref(loader.dataset),
                                             self.run.loader_places.get(loader))
        elif not grad and not module.training and loader not in self.asked:
            self.asked.add(loader)
            for ref, place in self.trained.get(module, {}).values():
                if (other := ref()) is not None and other is not loader.dataset:
                    self.compare(loader, other, place)

    def compare(self, loader, other, place):
        (base, measured), (of_training, rows) = split(loader.dataset), split(other)
        if base is not of_training or measured is None:
            return
        if rows is not None and max(len(rows), len(measured)) > MOST:
            return
        both = len(measured) if rows is None else len(set(measured) & set(rows))
        if both and set(measured) != set(range(len(base)) if rows is None else rows):
            self.say(f"{both} of the {len(measured)} rows of this evaluation are trained on, too: "
                     "the training loader holds "
                     f"{'the whole dataset' if rows is None else 'rows of the other part'}",
                     place or self.run.loader_places.get(loader))


def split(dataset):
    """The dataset that the subsets were taken from, and the chosen rows; None for all."""
    rows = None
    while isinstance(dataset, Subset):
        chosen = list(dataset.indices)
        rows = chosen if rows is None else [chosen[i] for i in rows]
        dataset = dataset.dataset
    return dataset, rows

"""The best weights, kept by reference and saved at the end."""

import weakref

import torch

from dlsys_watch.rule import Rule


class SavedItself(Rule):
    id, trap = "saved-itself", "06.4"
    reads = "state dicts that were taken steps before they are saved, and still follow the model"

    def __init__(self, watch):
        super().__init__(watch)
        self.taken = {}    # id of a state dict -> (weak reference to it, to its model, steps)

    def on_state(self, module, state):
        self.taken = {key: known for key, known in self.taken.items() if known[0]() is not None}
        self.taken[id(state)] = weakref.ref(state), weakref.ref(module), self.run.steps

    def on_save(self, what, *_):
        for state in [what, *(what.values() if isinstance(what, dict) else ())]:
            ref, model, steps = self.taken.get(id(state), (lambda: None, None, 0))
            if ref() is not state or steps >= self.run.steps or model() is None:
                continue
            held = self.run.held()
            moved = [key for key, p in model().named_parameters() if id(p) in held
                     and torch.is_tensor(state.get(key)) and p.data_ptr() == state[key].data_ptr()]
            if moved:
                self.say(f"what is saved was taken {self.run.steps - steps} steps ago by "
                         f"reference: {len(moved)} tensors have followed the model since")

"""Exercise 11.5, `stored_bytes`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import io
import zipfile

import torch

from dlsys_checks.s11.e5_stored_bytes import ex, stored, tensors

ex.equivalent("found[storage.data_ptr()] = storage.nbytes() -> found[storage] = storage.nbytes()",
              "while it is held, a storage is one object, however many tensors share it")
ex.equivalent("if isinstance(value, list | tuple): -> if isinstance(value, tuple | list):",
              "the order of the two types does not matter")


@ex.right("what torch.save writes, read from its file")
def from_the_file(state):
    file = io.BytesIO()
    torch.save([t.detach() for t in tensors(state)], file)
    with zipfile.ZipFile(file) as parts:
        return sum(p.file_size for p in parts.infolist() if "/data/" in p.filename)


@ex.right("recursion and a set of storages seen")
def recursion(state):
    seen = set()

    def count(value):
        if isinstance(value, torch.Tensor):
            key = value.untyped_storage()._cdata
            fresh = key not in seen
            seen.add(key)
            return value.untyped_storage().nbytes() if fresh else 0
        if isinstance(value, dict):
            return sum(count(one) for one in value.values())
        return sum(map(count, value)) if isinstance(value, list | tuple) else 0
    return count(state)


@ex.right("leaves by torch's own tree")
def by_tree(state):
    from torch.utils._pytree import tree_leaves
    leaves = [leaf for leaf in tree_leaves(state) if isinstance(leaf, torch.Tensor)]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().size()
                for t in leaves}.values())


@ex.right("storages compared one by one")
def compared(state):
    kept = []
    for tensor in tensors(state):
        if not any(tensor.untyped_storage().data_ptr() == s.data_ptr() for s in kept):
            kept.append(tensor.untyped_storage())
    return sum(s.nbytes() for s in kept)


@ex.probe("the example, with a number looked up wrong", breaks="example")
def looked_up(state):
    found = tensors(state)
    return 3 if len(found) == 1 and found[0].numel() == 3 and stored(found) == 12 else stored(found)

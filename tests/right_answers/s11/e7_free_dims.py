"""Exercise 11.7, `free_dims`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s11.e7_free_dims import ex, made

ex.equivalent("if isinstance(first, list | tuple): -> if isinstance(first, tuple | list):",
              "the order of the two types does not matter")


@ex.right("leaves and trees by torch")
def by_tree(examples):
    from torch.utils import _pytree as tree

    def is_leaf(value):
        return not isinstance(value, dict | list | tuple)

    def shape_of(value):
        if isinstance(value, dict):
            return ("dict", tuple((k, shape_of(value[k])) for k in sorted(value)))
        if isinstance(value, list | tuple):
            return (type(value).__name__, tuple(shape_of(v) for v in value))
        return type(value).__name__
    if len({shape_of(e) for e in examples}) != 1:
        raise ValueError("structures differ")

    def in_order(value):
        if isinstance(value, dict):
            return {k: in_order(value[k]) for k in sorted(value)}
        if isinstance(value, list | tuple):
            return type(value)(in_order(v) for v in value)
        return value
    flat = [tree.tree_flatten(in_order(e), is_leaf=is_leaf) for e in examples]
    out = []
    for values in zip(*[f[0] for f in flat], strict=True):
        if torch.is_tensor(values[0]):
            if any(v.dtype != values[0].dtype or v.ndim != values[0].ndim for v in values):
                raise ValueError("kinds differ")
            dims = tuple(d for d, sizes in enumerate(zip(*[v.shape for v in values], strict=True))
                         if max(sizes) > min(sizes))
            if any(values[0].shape[d] <= 1 for d in dims):
                raise ValueError("a size of 0 or 1")
            out.append(dims)
        elif any(v != values[0] for v in values):
            raise ValueError("values differ")
        else:
            out.append(None)
    return tree.tree_unflatten(out, flat[0][1])


@ex.right("pairs with the first, then joined")
def in_pairs(examples):
    def pair(a, b):
        if type(a) is not type(b):
            raise ValueError("types differ")
        if isinstance(a, torch.Tensor):
            if a.dtype is not b.dtype or len(a.shape) != len(b.shape):
                raise ValueError("kinds differ")
            return {d for d in range(a.dim()) if a.size(d) != b.size(d)}
        if isinstance(a, dict):
            if a.keys() != b.keys():
                raise ValueError("keys differ")
            return {k: pair(a[k], b[k]) for k in a}
        if isinstance(a, list | tuple):
            if len(a) != len(b):
                raise ValueError("lengths differ")
            return [pair(u, v) for u, v in zip(a, b, strict=True)]
        if a != b:
            raise ValueError("values differ")
        return None

    def join(a, found):
        if isinstance(a, torch.Tensor):
            dims = set().union(*found)
            if {a.size(d) for d in dims} & {0, 1}:
                raise ValueError("0 or 1")
            return tuple(sorted(dims))
        if isinstance(a, dict):
            return {k: join(v, [f[k] for f in found]) for k, v in a.items()}
        if isinstance(a, list | tuple):
            return type(a)([join(v, [f[k] for f in found]) for k, v in enumerate(a)])
        return None
    first, *others = examples
    return join(first, [pair(first, other) for other in others])


@ex.right("by a list of paths")
def by_paths(examples):
    def walk(path, value, seen):
        if isinstance(value, dict):
            seen[path] = ("dict", tuple(sorted(value)))
            for key in value:
                walk((*path, key), value[key], seen)
        elif isinstance(value, list | tuple):
            seen[path] = (type(value).__name__, len(value))
            for k, one in enumerate(value):
                walk((*path, k), one, seen)
        elif isinstance(value, torch.Tensor):
            seen[path] = ("tensor", str(value.dtype), value.dim())
        else:
            seen[path] = (type(value).__name__, value)
        return seen

    def at(value, path):
        for key in path:
            value = value[key]
        return value
    maps = [walk((), e, {}) for e in examples]
    if any(m != maps[0] for m in maps):
        raise ValueError("another structure")

    def build(path, value):
        if isinstance(value, dict):
            return {k: build((*path, k), v) for k, v in value.items()}
        if isinstance(value, list):
            return [build((*path, k), v) for k, v in enumerate(value)]
        if isinstance(value, tuple):
            return tuple(build((*path, k), v) for k, v in enumerate(value))
        if not isinstance(value, torch.Tensor):
            return None
        dims = []
        for d in range(value.dim()):
            if any(at(e, path).shape[d] != value.shape[d] for e in examples):
                if value.shape[d] in (0, 1):
                    raise ValueError(f"size {value.shape[d]}")
                dims.append(d)
        return tuple(dims)
    return build((), examples[0])


@ex.right("type by type, the sizes as columns")
def type_by_type(examples):
    first = examples[0]
    kinds = {type(e) for e in examples}
    if len(kinds) != 1:
        raise ValueError(f"types {kinds}")
    match first:
        case torch.Tensor():
            if len({e.dtype for e in examples}) != 1 or len({e.ndim for e in examples}) != 1:
                raise ValueError("dtype or rank")
            columns = zip(*(e.shape for e in examples), strict=True)
            free = [d for d, column in enumerate(columns) if len(set(column)) != 1]
            if min((first.shape[d] for d in free), default=2) < 2:
                raise ValueError("0 or 1")
            return tuple(free)
        case dict():
            if not all(e.keys() == first.keys() for e in examples):
                raise ValueError("keys")
            return dict(zip(first, [type_by_type([e[k] for e in examples]) for k in first],
                            strict=True))
        case list() | tuple():
            if {len(e) for e in examples} != {len(first)}:
                raise ValueError("length")
            return kinds.pop()([type_by_type(list(e)) for e in zip(*examples, strict=True)])
    if not all(e == first for e in examples):
        raise ValueError("a constant that varies")
    return None


@ex.probe("values kept under a path that joins the keys with dots", says="dimensions",
          breaks="examples")
def joined_keys(examples):
    first, found = examples[0], {}

    def flat(path, values):
        if isinstance(values[0], dict):
            for key in values[0]:
                flat(f"{path}.{key}", [value[key] for value in values])
        elif isinstance(values[0], list | tuple):
            for k, some in enumerate(zip(*values, strict=True)):
                flat(f"{path}.{k}", some)
        else:
            found[path] = made(list(values))

    def built(path, value):
        if isinstance(value, dict):
            return {key: built(f"{path}.{key}", one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(built(f"{path}.{k}", one) for k, one in enumerate(value))
        return found[path]
    made(examples)
    flat("", examples)
    return built("", first)


@ex.probe("the example, with a number looked up wrong", says="dimensions", breaks="example")
def looked_up(examples):
    found = made(examples)
    return ((1,), None) if found == ((0,), None) and len(examples) == 2 else found

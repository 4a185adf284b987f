"""Exercise 11.7, `free_dims`."""

from __future__ import annotations

import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import Broken, expect_equal, expect_length, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("11.7", "free_dims", seen=("examples",), says="what is raised")

ex.promise("varies", "What varies between examples for an exporter, in their structure.",
           says=("dimensions", "container", "entry for", "raised"))
ex.promise("examples", "examples: at least two inputs of one model: tensors, numbers, texts, "
           "None, and lists, tuples and dicts of such, at any depth.",
           cases=("three examples", "five examples", "a bare tensor", "deep", "nothing in it",
                  "a dict", "a list", "texts and None", "a number alone", "no dimensions"))
ex.promise("first", "The first is the one to be exported.",
           cases=("1 in the first", "1 in the second", "0 in the first", "0 in the second",
                  "1 in the last of three", "1 in the first, second dimension",
                  "1 in one of two that vary", "1 in the other of two that vary"))
ex.promise("place", "The result is built like it:", says=("container",))
# Numbers and texts that are equal, and no other object; entries and memory order may differ.
ex.promise_table("""
dims    | in the place of a tensor stands a tuple of those dimensions whose size is not the same in
          all examples, in rising order; | dimensions
else    | in the place of all else stands None. | entry for
raises  | Raises ValueError where an exporter could not leave open what varies: | raised
type    | the type of a value, | case a number for a tensor; a list for a tuple; None for a tensor;
          1 for True; 2.0 for 2; a tensor for None; a dict for a list; a type in the second of
          three; a type in the third; True for 1; False for 0
value   | a number, text or None, | case another number; another text; another number in the third;
          another number, deep; False for True; half a number more; another letter case; a number a
          little larger; another number in the second of three
length  | the length of a list or tuple, | case a longer list; a longer tuple; a shorter list; a
          longer list, the third
keys    | the keys of a dict, | case another key; a key too many; a key too few; a key in the third;
          a key in the second of three
kind    | a tensor's dtype or number of dimensions; | case another dtype; another dtype of as many
          bytes; more dimensions; fewer dimensions; a dtype in the second of three; a dtype in the
          third; dimensions in the second of three; dimensions in the third
small   | and where a varying dimension has size 0 or 1 in the first example. | case 1 in the first;
          0 in the first; 1 in the first, second dimension; 1 that stays; 0 that stays; 1 in the
          second; 0 in the second; 1 in one of two that vary; 1 in the other of two that vary
order   | The order of keys does not matter. | case keys in another order
left    | Examples stay as they are. | examples that changed
example | Example: [(zeros(2, 3), 0.5), (zeros(7, 3), 0.5)]: ((0,), None). | case the example
""")


@ex.cases
def cases(g):
    whole = integers(g)

    def some(*shape, dtype=torch.float32):
        return torch.zeros(shape).to(dtype)

    a, b = whole(2, 5), whole(5, 9)          # sizes, neither 0 nor 1
    c, n = whole(9, 12), whole(12, 15)
    x, y, z = some(a, n), some(b, n), some(c, n)
    share = whole(1, 90) / 64

    def one(name, *examples):
        return name, {"examples": list(examples)}

    def deep(t, value=share, text="sum"):
        return {"in": [({"x": t, "how": (value, None)}, [t, some(n)])], "text": text}

    def drawn():
        """Two inputs of five tensors, each of whose sizes may vary or not."""
        first = [[whole(2, 9) for _ in range(3)] for _ in range(5)]
        vary = (torch.rand(5, 3, generator=g) < 0.5).tolist()
        other = [[n + 7 if v else n for n, v in zip(*rows)] for rows in zip(first, vary)]
        return [[some(*sizes) for sizes in sets] for sets in (first, other)]

    return [one("a bare tensor", x, y), one("any of fifteen sizes", *drawn()),
            one("two dimensions", some(a, n, b), some(b, n, c)),
            one("the second dimension", some(n, a), some(n, c)),
            one("the last of three", some(2, 3, a), some(2, 3, b)),
            one("four dimensions", some(a, 2, a, b), some(b, 2, b, b)),
            one("nothing varies", (x, y), (x.clone(), y.clone())),
            one("three examples", some(a, n, b), some(b, n, b), some(a, n, c)),
            one("the third varies", x, x.clone(), z),
            one("back to the first", x, y, x.clone()),
            one("five examples", some(a, 3, b), some(a, 3, b), some(c, 3, b), some(a, 3, b),
                some(a, 3, c)),
            one("two tensors", (x, some(3)), (y, some(3))),
            one("a dict", {"x": x, "y": some(n, a), "t": share},
                {"x": y, "y": some(n, b), "t": share}),
            one("a list", [x, some(n)], [z, some(n)]), one("deep", deep(x), deep(z)),
            one("nothing in it", ((), {}, []), ((), {}, [])),
            one("empty beside a tensor", [{}, x, ()], [{}, y, ()]),
            one("texts and None", ("sum", None, x, 7), ("sum", None, y, 7)),
            one("a number alone", share, share), one("a truth", (True, x), (True, z)),
            one("no dimensions", (some(), x), (some(), y)),
            one("many dtypes", (x, some(a, dtype=torch.int64), some(2, dtype=torch.bool)),
                (y, some(b, dtype=torch.int64), some(2, dtype=torch.bool))),
            one("keys in another order", {"x": x, "t": share, "m": some(n, a)},
                {"m": some(n, b), "t": share, "x": y}),
            one("1 in the first", some(1, n), y), one("1 in the second", y, some(1, n)),
            one("0 in the first", some(0, n), y), one("0 in the second", y, some(0, n)),
            one("1 in the last of three", x, y, some(1, n)),
            one("1 in the first, second dimension", (x, some(n, 1)), (y, some(n, b))),
            one("1 that stays", some(a, 1), some(b, 1)), one("0 that stays", some(0, a),
                                                            some(0, c)),
            one("a number for a tensor", (x, some()), (y, 0.0)),
            one("None for a tensor", [x, x], [y, None]),
            one("a tensor for None", (None, x), (x, y)),
            one("a list for a tuple", (x, share), [y, share]),
            one("a dict for a list", ([], x), ({}, y)),
            one("1 for True", (x, True), (y, 1)), one("2.0 for 2", {"k": 2, "x": x},
                                                     {"k": 2.0, "x": y}),
            one("another number", (x, share), (y, share + 1)),
            one("another text", {"how": "sum", "x": x}, {"how": "mean", "x": y}),
            one("another number in the third", (x, 3), (y, 3), (z, 4)),
            one("another number, deep", deep(x), deep(y, value=share + 2)),
            one("a longer list", [x], [y, x]), one("a shorter list", [x, x, x], [y, x]),
            one("a longer tuple", (x, 1), (y, 1, 1)),
            one("another key", {"x": x}, {"y": y}), one("a key too many", {"x": x},
                                                        {"x": y, "y": y}),
            one("a key too few", {"x": x, "t": share}, {"x": y}),
            one("another dtype", x, y.double()), one("more dimensions", x, some(b, n, 1)),
            one("fewer dimensions", some(a, n, a), some(b, n)),
            one("a type in the second of three", (x, 2), (y, 2.0), (z, 2)),
            one("a type in the third", [x, 0], [y, 0], [z, False]),
            one("another number in the second of three", (x, 3), (y, 4), (z, 3)),
            one("a longer list, the third", [x], [y], [z, z]),
            one("a key in the second of three", {"x": x}, {"x": y, "y": y}, {"x": z}),
            one("a key in the third", {"x": x}, {"x": y}, {"x": z, "y": z}),
            one("a dtype in the second of three", x, y.double(), z),
            one("a dtype in the third", x, y, z.double()),
            one("dimensions in the second of three", x, y[..., None], z),
            one("dimensions in the third", x, y, z[..., None]),
            one("1 in one of two that vary", some(1, a), some(b, c)),
            one("1 in the other of two that vary", some(a, 1), some(b, c)),
            one("True for 1", (x, 1), (y, True)), one("False for 0", {"k": 0, "x": x},
                                                      {"k": False, "x": y}),
            one("False for True", (x, True), (y, False)),
            one("half a number more", (x, 2.25), (y, 2.75)),
            one("a number a little larger", (x, 2.0), (y, 2.0 + 1e-9)),
            one("another letter case", (x, "sum"), (y, "Sum")),
            one("another dtype of as many bytes", x, y.to(torch.int32)),
            one("equal numbers, other objects", [x, 1000 + n, n / 8, "su" + "m" * (n > 0)],
                [y, 1000 + n, n / 8, "".join(["s", "u", "m"])]),
            one("other entries", (x, some(3)), (x + 1, some(3) - 1)),
            one("another memory order", some(a, 2, n), some(n, 2, b).permute(2, 1, 0)),
            one("eight deep", *[[[[[[[[[{"x": t}]]]]]]]] for t in (x, y)]),
            one("the example", (torch.zeros(2, 3), 0.5), (torch.zeros(7, 3), 0.5))]


@ex.act
def act(fn, examples):
    def facts(value):
        if isinstance(value, torch.Tensor):
            return [id(value), value._version, tuple(value.shape), str(value.dtype)]
        if isinstance(value, dict):
            return [[key, facts(one)] for key, one in value.items()]
        if isinstance(value, list | tuple):
            return [type(value).__name__, [facts(one) for one in value]]
        return [type(value).__name__, value]

    before = facts(examples)
    try:
        out, raised = fn(examples), "nothing"
    except ValueError:
        out, raised = "", "ValueError"
    return {"result": [out], "raised": raised, "changed": int(facts(examples) != before)}


@ex.law
def law(out, examples):
    expect_parts(out, "result", "raised", "changed")
    expect_equal("examples that changed", out["changed"], 0, "Only look.")
    paths = [{path: kind for path, kind in leaves("", e)} for e in examples]
    closed = [p for p in {p for each in paths for p in each} if not open_to(p, paths)]
    wanted = "ValueError" if closed else "nothing"
    expect_equal("what is raised", out["raised"], wanted,
                 f"Look at {min(closed) or 'the whole'}." if closed else "All of it can be open.")
    expect_length("parts of the result", out["result"], 1)
    if not closed:
        compare("", out["result"][0], examples[0], paths)


def leaves(path, value):
    """Every value with its path; a container is one, too. A tensor as (dtype, shape)."""
    if isinstance(value, torch.Tensor):
        yield path, (value.dtype, tuple(value.shape))
    elif isinstance(value, dict):
        yield path, (dict, frozenset(value))
        for key, one in value.items():
            yield from leaves(f"{path}.{key}", one)
    elif isinstance(value, list | tuple):
        yield path, (type(value), len(value))
        for k, one in enumerate(value):
            yield from leaves(f"{path}[{k}]", one)
    else:
        yield path, (type(value), value)


def open_to(path, paths):
    """Whether what stands at the path can be open: tensors that differ in sizes above 1."""
    kinds = [each.get(path) for each in paths]
    if all(kind == kinds[0] and [*map(type, kind)] == [*map(type, kinds[0])] for kind in kinds
           if kind) and None not in kinds:
        return True
    tensors = all(kind and isinstance(kind[0], torch.dtype) for kind in kinds)
    if not tensors or len({(kind[0], len(kind[1])) for kind in kinds}) > 1:
        return False
    sizes = torch.tensor([kind[1] for kind in kinds])
    return bool((sizes[0][moving(sizes)] > 1).all())


def moving(sizes):
    """True for each column of sizes (examples, dimensions) that is not constant."""
    return sizes.amax(0) != sizes.amin(0)


def compare(path, got, first, paths):
    """The result at a path: a tuple for a tensor, the same container, or None."""
    at = f" at {path}" if path else ""
    if isinstance(first, torch.Tensor):
        sizes = torch.tensor([each[path][1] for each in paths])
        wanted = tuple(moving(sizes).nonzero().flatten().tolist()) if first.dim() else ()
        expect_equal(f"dimensions left open{at}", got, wanted)
    elif isinstance(first, dict):
        if type(got) is not dict or set(got) != set(first):
            raise Broken(f"container{at}", got, f"a dict of the keys {sorted(first)}")
        for key, one in first.items():
            compare(f"{path}.{key}", got[key], one, paths)
    elif isinstance(first, list | tuple):
        if type(got) is not type(first) or len(got) != len(first):
            raise Broken(f"container{at}", got, f"a {type(first).__name__} of {len(first)}")
        for k, one in enumerate(first):
            compare(f"{path}[{k}]", got[k], one, paths)
    elif got is not None:
        raise Broken(f"entry for no tensor{at}", got, None)


# ---- wrong, by name

@not_an_answer
def made(examples, *, types=True, values=True, lengths=True, keys=True, dtypes=True, ranks=True,
         small=(0, 1), where=0, dims=None, other=None, path=()):
    """The right answer with its pieces as options."""
    rules = {"types": types, "values": values, "lengths": lengths, "keys": keys, "dtypes": dtypes,
             "ranks": ranks, "small": small, "where": where, "dims": dims, "other": other}

    def again(inside, key):
        return made(inside, path=(*path, key), **rules)
    first = examples[0]
    if types and any(type(e) is not type(first) for e in examples):
        raise ValueError("types")
    if isinstance(first, torch.Tensor):
        rest = [e for e in examples if isinstance(e, torch.Tensor)]
        if dtypes and len({e.dtype for e in rest}) > 1:
            raise ValueError("dtypes")
        if ranks and len({e.dim() for e in rest}) > 1:
            raise ValueError("ranks")
        least = min(e.dim() for e in rest)
        free = [d for d in range(least) if len({e.shape[d] for e in rest}) > 1]
        if any(examples[where].shape[d] in small for d in free):
            raise ValueError("small")
        return dims(free) if dims else tuple(free)
    if isinstance(first, dict):
        if keys and any(isinstance(e, dict) and set(e) != set(first) for e in examples):
            raise ValueError("keys")
        return {k: again([e[k] for e in examples if k in e], k) for k in first}
    if isinstance(first, list | tuple):
        if lengths and any(len(e) != len(first) for e in examples):
            raise ValueError("lengths")
        return type(first)([again(list(e), k) for k, e in enumerate(zip(*examples, strict=False))])
    if values and any(e != first for e in examples):
        raise ValueError("values")
    return other(first) if other else None


@ex.wrong("the first two examples alone", breaks=("dims", "examples"))
def first_two(examples):
    made(examples, small=())
    found = made(examples[:2], small=())
    made(examples)
    return found


@ex.wrong("the first and the last", breaks=("dims", "examples", "first"))
def first_and_last(examples):
    made(examples)
    return made([examples[0], examples[-1]])


ex.wrong("a list of dimensions", made, breaks="dims", dims=list)
ex.wrong("the dimensions in falling order", made, breaks="dims",
         dims=lambda free: tuple(free[::-1]))


@ex.wrong("tensors with other entries refused", says="what is raised", breaks="varies")
def same_entries(examples):
    def look(values):
        first = values[0]
        if isinstance(first, torch.Tensor) and len({t.shape for t in values}) == 1 and any(
                not torch.equal(t, first) for t in values):
            raise ValueError("entries")
        if isinstance(first, dict):
            for key in first:
                look([v[key] for v in values])
        if isinstance(first, list | tuple):
            for inside in zip(*values, strict=True):
                look(inside)
    found = made(examples)
    look(examples)
    return found


@ex.wrong("objects compared, not values", says="what is raised", breaks="varies")
def objects(examples):
    def look(first, other):
        if isinstance(first, dict):
            for key in first:
                look(first[key], other[key])
        elif isinstance(first, list | tuple):
            for u, v in zip(first, other, strict=True):
                look(u, v)
        elif isinstance(first, float) and first is not other:
            raise ValueError("another object")
    found = made(examples)
    for other in examples[1:]:
        look(examples[0], other)
    return found


ex.wrong("the first dimension that varies alone", made, breaks="dims",
         dims=lambda free: tuple(free[:1]))


@ex.wrong("the dimensions that stay", breaks="varies")
def those_that_stay(examples):
    def turned(value, like):
        if isinstance(like, torch.Tensor):
            return tuple(d for d in range(like.dim()) if d not in value)
        if isinstance(like, dict):
            return {k: turned(value[k], like[k]) for k in like}
        if isinstance(like, list | tuple):
            return type(like)(turned(v, u) for v, u in zip(value, like, strict=True))
        return value
    return turned(made(examples), examples[0])


ex.wrong("dimension 0 for each tensor that varies", made, breaks="dims",
         dims=lambda free: (0,) if free else ())
ex.wrong("None for a tensor that does not vary", made, breaks="dims",
         dims=lambda free: tuple(free) or None)
ex.wrong("values in the place of all else", made, breaks="else", other=lambda value: value)
ex.wrong("an empty tuple in the place of all else", made, breaks="else", other=lambda value: ())


@ex.wrong("lists for tuples", breaks="place")
def lists(examples):
    def turn(value, like):
        if isinstance(like, dict):
            return {k: turn(value[k], like[k]) for k in like}
        if isinstance(like, list | tuple):
            return [turn(v, u) for v, u in zip(value, like, strict=True)]
        return value
    return turn(made(examples), examples[0])


@ex.wrong("types not compared", breaks="type")
def no_types(examples):
    try:
        return made(examples, types=False)
    except (TypeError, AttributeError):
        return made(examples[:1])


@ex.wrong("True and 1 taken for the same", breaks="type")
def truth_and_one(examples):
    def plain(value):
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(plain(v) for v in value)
        return float(value) if isinstance(value, int | float) else value
    return made([plain(e) for e in examples])


@ex.wrong("True taken for a kind of 1", breaks="type")
def kinds_of(examples):
    def plain(value, like):
        if isinstance(like, dict) and isinstance(value, dict) and set(value) == set(like):
            return {k: plain(value[k], like[k]) for k in like}
        if isinstance(like, list | tuple) and type(like) is type(value) and len(
                like) == len(value):
            return type(like)(plain(v, u) for v, u in zip(value, like, strict=True))
        return int(value) if type(like) is int and type(value) is bool else value
    return made([examples[0], *[plain(e, examples[0]) for e in examples[1:]]])


@ex.wrong("lists and tuples taken for the same", breaks="type")
def any_sequence(examples):
    if isinstance(examples[0], tuple) and isinstance(examples[1], list):
        return made([tuple(e) for e in examples])
    return made(examples)


ex.wrong("values not compared", made, breaks="value", values=False)


@ex.wrong("flags left open", breaks="value")
def flags_open(examples):
    def shut(value):
        if isinstance(value, dict):
            return {k: shut(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(shut(v) for v in value)
        return True if isinstance(value, bool) else value
    return made([shut(e) for e in examples])


@ex.wrong("values of the first two compared", breaks=("value", "examples"))
def two_values(examples):
    made(examples[:2])
    return made(examples, values=False)


@ex.wrong("values at the top compared", breaks="value")
def top_values(examples):
    if isinstance(examples[0], dict) and "in" in examples[0]:
        return made(examples, values=False)
    return made(examples)


ex.wrong("lengths not compared", made, breaks="length", lengths=False)
ex.wrong("keys not compared", made, breaks="keys", keys=False)


@ex.wrong("keys of the first looked up in the others", breaks="keys")
def keys_of_the_first(examples):
    if isinstance(examples[0], dict) and all(set(e) >= set(examples[0]) for e in examples):
        return made(examples, keys=False)
    return made(examples)


@ex.wrong("keys compared in their order", breaks="order")
def keys_in_order(examples):
    if isinstance(examples[0], dict) and any(list(e) != list(examples[0]) for e in examples):
        raise ValueError("keys")
    return made(examples)


@ex.wrong("values taken in the order of the keys", says="dimensions", breaks="order")
def by_place(examples):
    if isinstance(examples[0], dict) and len({frozenset(e) for e in examples}) == 1:
        first = examples[0]
        examples = [dict(zip(first, e.values(), strict=True)) for e in examples]
    return made(examples)


@ex.wrong("bytes of the dtype compared", breaks="kind")
def bytes_alone(examples):
    if all(isinstance(e, torch.Tensor) for e in examples) and len(
            {e.element_size() for e in examples}) == 1:
        return made(examples, dtypes=False)
    return made(examples)


@ex.wrong("the size of the first varying dimension alone asked", breaks=("small", "first"))
def first_size(examples):
    def check(value, like):
        if isinstance(like, torch.Tensor):
            if value and like.shape[value[0]] < 2:
                raise ValueError("small")
        elif isinstance(like, dict):
            for k in like:
                check(value[k], like[k])
        elif isinstance(like, list | tuple):
            for v, u in zip(value, like, strict=True):
                check(v, u)
    found = made(examples, small=())
    check(found, examples[0])
    return found


ex.wrong("dtypes not compared", made, breaks="kind", dtypes=False)
ex.wrong("numbers of dimensions not compared", made, breaks="kind", ranks=False)
ex.wrong("sizes of 0 and 1 let pass", made, breaks=("small", "first"), small=())
ex.wrong("sizes of 1 alone refused", made, breaks=("small", "first"), small=(1,))
ex.wrong("sizes of 0 alone refused", made, breaks=("small", "first"), small=(0,))
ex.wrong("the last example taken for the one to be exported", made, breaks="first", where=-1)


@ex.wrong("0 and 1 refused in any example", breaks=("first", "small"))
def in_any(examples):
    for k in range(len(examples)):
        made(examples, where=k)
    return made(examples)


@ex.wrong("0 and 1 refused where nothing varies", breaks="small")
def refused_anyway(examples):
    def look(value):
        if isinstance(value, torch.Tensor) and 0 < min(value.shape, default=2) < 2:
            raise ValueError("1")
        if isinstance(value, torch.Tensor) and value.numel() == 0 and value.shape[0] == 0:
            raise ValueError("0")
        if isinstance(value, dict | list | tuple):
            for one in value.values() if isinstance(value, dict) else value:
                look(one)
    found = made(examples)
    look(examples[0])
    return found


@ex.wrong("a TypeError in place of a ValueError", breaks="raises")
def type_error(examples):
    try:
        return made(examples)
    except ValueError as error:
        raise TypeError("it varies") from error


@ex.wrong("None in place of an error", says="what is raised", breaks=("raises", "type", "kind"))
def none_instead(examples):
    try:
        return made(examples)
    except ValueError:
        return None


@ex.wrong("a number alone taken for a mistake", says="raised", breaks="examples")
def no_number(examples):
    if isinstance(examples[0], float):
        raise RuntimeError("an input is a tensor, a dict, a list or a tuple")
    return made(examples)


@ex.wrong("tensors shrunk on the way", breaks="left")
def shrinks(examples):
    found = made(examples)
    examples.pop()
    return found

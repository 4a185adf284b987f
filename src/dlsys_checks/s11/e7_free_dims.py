"""Exercise 11.7, `free_dims`."""

from __future__ import annotations

import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import Broken, expect_equal, expect_length, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("11.7", "free_dims", seen=("examples",), says="what is raised")

ex.promise("varies", "Find the dimensions that an exporter has to make dynamic.",
           says=("dimensions", "container", "entry for", "raised"))
ex.promise("examples", "Args: examples: at least two inputs of one model: tensors, numbers, str, "
           "None, and lists, tuples and dicts of these, at any depth.",
           cases=("three examples", "five examples", "a bare tensor", "deep", "an empty container",
                  "a key that reads like a path",
                  "a dict", "a list", "texts and None", "a number alone", "no dimensions"))
ex.promise("first", "The first is the example to export.",
           cases=("1 in the first", "1 in the second", "0 in the first", "0 in the second",
                  "1 in the last of three", "1 in the first, second dimension",
                  "1 in one of two that vary", "1 in the other of two that vary"))
ex.promise("place", "Returns: A copy of the structure of the first example.", says=("container",))
# Numbers and texts that are equal, and no other object; entries and memory order may differ.
ex.promise_table("""
dims    | A tensor is replaced by a tuple of the dimensions whose size is not the same in all
          examples, in ascending order. | dimensions
else    | Everything else is replaced by None. | entry for
raises  | Raises ValueError if something varies that an exporter cannot make dynamic. | raised
type    | The type of a value must not vary. | case a number for a tensor; a list for a tuple; None
          for a tensor; 1 for True; 2.0 for 2; a tensor for None; a dict for a list; a type in the
          second of three; a type in the third; True for 1; False for 0
value   | A number, str or None must not vary. | case another number; another text; another number
          in the third; another number, deep; False for True; a number larger by a half; another
          letter case; a number a little larger; another number in the second of three
length  | The length of a list or tuple must not vary. | case a longer list; a longer tuple; a
          shorter list; a longer list, the third
keys    | The keys of a dict must not vary. | case another key; an extra key; a missing key; a key
          in the third; a key in the second of three
kind    | A tensor's dtype and number of dimensions must not vary. | case another dtype; another
          dtype of the same size; more dimensions; fewer dimensions; a dtype in the second of three;
          a dtype in the third; dimensions in the second of three; dimensions in the third
small   | The error is raised as well if a varying dimension has size 0 or 1 in the first example. |
          case 1 in the first; 0 in the first; 1 in the first, second dimension; 1 that stays; 0
          that stays; 1 in the second; 0 in the second; 1 in one of two that vary; 1 in the other of
          two that vary
order   | Their order may vary. | case keys in another order
left    | They do not change. | examples that changed
example | Example: [(zeros(2, 3), 0.5), (zeros(7, 3), 0.5)] gives ((0,), None). | case the example
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
            one("an empty container", ((), {}, []), ((), {}, [])),
            one("an empty container and a tensor", [{}, x, ()], [{}, y, ()]),
            one("texts and None", ("sum", None, x, 7), ("sum", None, y, 7)),
            one("a number alone", share, share), one("a bool", (True, x), (True, z)),
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
            one("another key", {"x": x}, {"y": y}), one("an extra key", {"x": x},
                                                        {"x": y, "y": y}),
            one("a missing key", {"x": x, "t": share}, {"x": y}),
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
            one("a number larger by a half", (x, 2.25), (y, 2.75)),
            one("a number a little larger", (x, 2.0), (y, 2.0 + 1e-9)),
            one("another letter case", (x, "sum"), (y, "Sum")),
            one("another dtype of the same size", x, y.to(torch.int32)),
            one("equal numbers, other objects", [x, 1000 + n, n / 8, "su" + "m" * (n > 0)],
                [y, 1000 + n, n / 8, "".join(["s", "u", "m"])]),
            one("other entries", (x, some(3)), (x + 1, some(3) - 1)),
            one("another memory order", some(a, 2, n), some(n, 2, b).permute(2, 1, 0)),
            one("a key that reads like a path", {"a": {"b": x}, "a.b": some(3, n)},
                {"a": {"b": y}, "a.b": some(3, n)}),
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
    expect_equal("examples that changed", out["changed"], 0,
                 "Read the examples, and change nothing.")
    paths = [{path: kind for path, kind in leaves("", e)} for e in examples]
    closed = [p for p in {p for each in paths for p in each} if not open_to(p, paths)]
    wanted = "ValueError" if closed else "nothing"
    expect_equal("what is raised", out["raised"], wanted,
                 f"What differs at {min(closed) or 'the top level'} cannot be dynamic."
                 if closed else "Everything that varies here can be dynamic.")
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
            yield from leaves(f"{path}[{key!r}]", one)
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
        expect_equal(f"dimensions that vary{at}", got, wanted)
    elif isinstance(first, dict):
        if type(got) is not dict or set(got) != set(first):
            raise Broken(f"container{at}", got, f"a dict with the keys {sorted(first)}")
        for key, one in first.items():
            compare(f"{path}[{key!r}]", got[key], one, paths)
    elif isinstance(first, list | tuple):
        if type(got) is not type(first) or len(got) != len(first):
            raise Broken(f"container{at}", got, f"a {type(first).__name__} of length {len(first)}")
        for k, one in enumerate(first):
            compare(f"{path}[{k}]", got[k], one, paths)
    elif got is not None:
        raise Broken(f"entry for a value that is not a tensor{at}", got, None)


# ---- wrong, by name

@not_an_answer
def made(examples):
    first = examples[0]
    if any(type(e) is not type(first) for e in examples):
        raise ValueError("types")
    if isinstance(first, torch.Tensor):
        if len({e.dtype for e in examples}) > 1:
            raise ValueError("dtypes")
        if len({e.dim() for e in examples}) > 1:
            raise ValueError("numbers of dimensions")
        free = [d for d in range(first.dim()) if len({e.shape[d] for e in examples}) > 1]
        if any(first.shape[d] in (0, 1) for d in free):
            raise ValueError("0 or 1")
        return tuple(free)
    if isinstance(first, dict):
        if any(set(e) != set(first) for e in examples):
            raise ValueError("keys")
        return {k: made([e[k] for e in examples]) for k in first}
    if isinstance(first, list | tuple):
        if any(len(e) != len(first) for e in examples):
            raise ValueError("lengths")
        return type(first)([made(list(e)) for e in zip(*examples, strict=False)])
    if any(e != first for e in examples):
        raise ValueError("values")
    return None


wrong = ex.edits(made)
TYPES, VALUES, SMALL = "type(e) is not type(first)", "e != first for e", "first.shape[d] in (0, 1)"
SIZES, FREE, KEYS = "e.shape[d] for e in examples", "tuple(free)", "set(e) != set(first)"
INSIDE, NOTHING = "made([e[k] for e in examples])", "return None"
wrong("comparing only the first two examples", ("dims", "examples"), SIZES, SIZES + "[:2]")
wrong("comparing only the first example and the last", ("dims", "examples", "first"),
      SIZES, "e.shape[d] for e in (first, examples[-1])")
wrong("returning a list of dimensions", "dims", FREE, "free")
wrong("returning the dimensions in descending order", "dims", FREE, "tuple(free[::-1])")
wrong("refusing tensors because their entries differ", "varies",
      "free =",
      "if len({e.shape for e in examples}) == 1 and not all(e.equal(first) for e in examples):\n"
      '            raise ValueError("entries")\n        free =', says="what is raised")
wrong("comparing numbers by identity instead of by value", "varies",
      VALUES, "(e is not first if isinstance(e, float) else e != first) for e",
      says="what is raised")
wrong("returning only the first dimension that varies", "dims", FREE, "tuple(free[:1])")
wrong("returning the dimensions that stay the same", "varies",
      FREE, "tuple(d for d in range(first.dim()) if d not in free)")
wrong("returning dimension 0 for each tensor that varies", "dims", FREE, "(0,) if free else ()")
wrong("returning None for a tensor that does not vary", "dims", FREE, "tuple(free) or None")
wrong("returning a value itself instead of None", "else", NOTHING, "return first")
wrong("returning an empty tuple instead of None for a value", "else", NOTHING, "return ()")
wrong("turning tuples into lists", "place", "type(first)([", "list([")
wrong("not comparing types", "type",
      "if any(type",
      "examples = [e for e in examples if isinstance(e, type(first))]\n    if any(type")
wrong("treating True and 1 as the same", "type",
      "first =",
      "examples = [float(e) if isinstance(e, int | float) else e for e in examples]; first =")
wrong("accepting True for 1, because bool is a subclass of int",
      "type", TYPES, "not isinstance(e, type(first))")
wrong("treating lists and tuples as the same", "type",
      TYPES, TYPES + " and {type(e), type(first)} != {list, tuple}")
wrong("not comparing the values of numbers, str and None",
      "value", f"any({VALUES} in examples)", "False")
wrong("accepting a value that is True in one example and False in another",
      "value", VALUES, "e != first and not isinstance(e, bool) for e")
wrong("comparing values in only the first two examples", ("value", "examples"),
      VALUES + " in examples", VALUES + " in examples[:2]")
wrong("comparing values only near the top of the structure", "value",
      "def made(examples):", "def made(examples, depth=0):",
      INSIDE, "made([e[k] for e in examples], depth + 1)",
      "made(list(e))", "made(list(e), depth + 1)", f"any({VALUES}", f"depth < 2 and any({VALUES}")
wrong("not comparing lengths", "length", "any(len(e) != len(first) for e in examples)", "False")
wrong("not comparing keys", "keys",
      f"any({KEYS} for e in examples)", "False", INSIDE, "made([e[k] for e in examples if k in e])")
wrong("accepting extra keys in later examples",
      "keys", KEYS, "not set(e) >= set(first)")
wrong("refusing dicts whose keys are in a different order", "order", KEYS, "list(e) != list(first)")
wrong("pairing values by their order in the dict, not by key", "order",
      f"{INSIDE} for k in first",
      "made(list(e)) for k, e in zip(first, zip(*(e.values() for e in examples)))",
      says="dimensions")
wrong("comparing only the element sizes of the dtypes",
      "kind", "e.dtype for e", "e.element_size() for e")
wrong("checking the size of only the first varying dimension", ("small", "first"),
      "for d in free)", "for d in free[:1])")
wrong("not comparing dtypes", "kind", "len({e.dtype for e in examples}) > 1", "False")
wrong("not comparing numbers of dimensions", "kind",
      "len({e.dim() for e in examples}) > 1", "False",
      "range(first.dim())", "range(min(e.dim() for e in examples))")
wrong("accepting a varying dimension with size 0 or 1 in the first example",
      ("small", "first"), SMALL, "False")
wrong("refusing size 1 but not size 0", ("small", "first"), SMALL, "first.shape[d] == 1")
wrong("refusing size 0 but not size 1", ("small", "first"), SMALL, "first.shape[d] == 0")
wrong("checking for sizes 0 and 1 in the last example, not the first", "first",
      SMALL, "examples[-1].shape[d] in (0, 1)")
wrong("refusing a varying dimension with size 0 or 1 in any example", ("first", "small"),
      SMALL, "any(e.shape[d] in (0, 1) for e in examples)")
wrong("refusing sizes 0 and 1 in dimensions that do not vary", "small",
      "for d in free)", "for d in range(first.dim()))")


@ex.wrong("raising a TypeError instead of a ValueError", breaks="raises")
def type_error(examples):
    try:
        return made(examples)
    except ValueError as error:
        raise TypeError("it varies") from error


@ex.wrong("returning None instead of raising an error",
          says="what is raised", breaks=("raises", "type", "kind"))
def none_instead(examples):
    try:
        return made(examples)
    except ValueError:
        return None


@ex.wrong("raising an error if each example is a single number", says="raised", breaks="examples")
def no_number(examples):
    if isinstance(examples[0], float):
        raise RuntimeError("an input is a tensor, a dict, a list or a tuple")
    return made(examples)


@ex.wrong("removing an example from the caller's list", breaks="left")
def shrinks(examples):
    found = made(examples)
    examples.pop()
    return found

"""Exercise 11.5, `stored_bytes`."""

from __future__ import annotations

import io
import sys
import zipfile

import torch
from torch import nn

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_equal, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("11.5", "stored_bytes", seen=("entries",), says="bytes stored")

ex.promise_table("""
bytes   | Count the tensor bytes that torch.save would write for a state dict. | bytes stored; type
          of the bytes
nested  | Args: state: a dict whose values are strided CPU tensors, or dicts, lists and tuples of
          tensors, at any depth. | case a dict inside; a list inside; a tuple inside; deep inside;
          no tensor; parameters; many types; a tensor without values; ordered dicts
others  | Any other values do not count. | case texts and numbers
once    | Returns: The bytes of all storages, not of the tensors: each storage counts once, no
          matter how many tensors share it. | case two names; two parts of one tensor; the same,
          deep inside; equal values; a part first, then the whole; a tensor and the same, detached;
          a tensor and its transpose
whole   | A storage counts in full, even if a tensor uses only a part of it or uses it several
          times. | case a few rows; every second row; expanded; an empty part; two parts of one
          tensor; a part first, then the whole
left    | state is left as it is. | changed in the state; inputs after
example | Example: {"a": torch.zeros(3)} gives 12. | case the example
""")


@ex.cases
def cases(g):
    """Entries (form, place, type, numbers of the storage); "again k" shares the k-th's storage."""
    whole = integers(g)

    def one(name, *entries):
        return name, {"entries": [[*e[:3], e[3] if len(e) > 3 else 4 * whole(3, 90)]
                                  for e in entries]}

    f = "float32"
    return [one("a few tensors", ("plain", "top", f), ("plain", "top", f), ("plain", "top", f)),
            one("many types", *[("plain", "top", kind) for kind in (
                f, "int8", "uint8", "bool", "float16", "bfloat16", "float64", "int64",
                "complex64")]),
            one("parameters", ("parameter", "top", f), ("plain", "top", "int64")),
            one("a dict inside", ("plain", "top", f), ("plain", "dict", "int8")),
            one("a list inside", ("plain", "list", f), ("plain", "top", f)),
            one("a tuple inside", ("plain", "tuple", "float16"), ("plain", "top", f)),
            one("deep inside", ("plain", "deep", f), ("plain", "deep", "int8"),
                ("plain", "top", f)),
            one("ordered dicts", ("plain", "ordered", f), ("plain", "top", "int8")),
            one("a tensor and the same, detached", ("plain", "top", f), ("detached 0", "top", f)),
            one("a tensor and its transpose", ("plain", "top", f), ("turned 0", "top", f)),
            one("no tensor"), one("a tensor without values", ("plain", "top", f, 0),
                                  ("plain", "top", f)),
            one("texts and numbers", ("plain", "top", f), ("extra", "top", f)),
            one("two names", ("plain", "top", f), ("again 0", "top", f), ("plain", "top", f)),
            one("two parts of one tensor", ("few", "top", f), ("rest 0", "top", f)),
            one("a part first, then the whole", ("few", "top", "int8"), ("again 0", "top", "int8")),
            one("the same, deep inside", ("plain", "top", f), ("again 0", "deep", f)),
            one("equal values", ("plain", "top", f, 40), ("plain", "top", f, 40)),
            one("a few rows", ("few", "top", f), ("plain", "top", f)),
            one("every second row", ("second", "top", "float64")),
            one("expanded", ("expanded", "top", f, 1), ("plain", "top", f)),
            one("an empty part", ("nothing", "top", f)),
            one("transposed in memory", ("turned", "top", f)),
            ("the example", {"entries": [["plain", "top", f, 3]]})]


@ex.act
def act(fn, entries):
    state, bases = {}, []
    if any(place == "ordered" for _, place, _, _ in entries):
        state = nn.Module().state_dict()
    for n, (form, place, kind, numbers) in enumerate(entries):
        base = torch.zeros(numbers).to(getattr(torch, kind))
        if len(form.split()) == 2:
            base = bases[int(form.split()[1])]
        bases.append(base)
        value = {"few": lambda b: b[:3], "rest": lambda b: b[3:], "second": lambda b: b[::2],
                 "expanded": lambda b: b.expand(50), "nothing": lambda b: b[:0],
                 "turned": lambda b: b.view(4, -1).T,
                 "detached": lambda b: b.detach(),
                 "parameter": nn.Parameter}.get(form.split()[0], lambda b: b)(base)
        key = f"n{n}"
        if form == "extra":
            state.update(text="weight", number=7, none=None, share=0.5, names=["a", 3, (True,)])
        if place == "ordered":
            inside = nn.Module().state_dict()
            inside["w"] = value
            state[key] = inside
            continue
        state[key] = {"dict": {"w": value}, "list": [value], "tuple": (value, None),
                      "deep": [{"a": ({"b": [value]}, [])}]}.get(place, value)

    def facts(value):
        if isinstance(value, torch.Tensor):
            return [id(value), value.shape, value.stride(), value._version]
        if isinstance(value, dict):
            return [[key, facts(one)] for key, one in value.items()]
        return [facts(one) for one in value] if isinstance(value, list | tuple) else value

    before = facts(state)
    out = fn(state)
    return {"bytes": out, "changed": int(facts(state) != before)}


@ex.law
def law(out, entries):
    expect_parts(out, "bytes", "changed")
    expect_equal("entries changed in the state", out["changed"], 0,
                 "Read the state, and change nothing.")
    # What torch.save itself writes for a tensor of each storage.
    file = io.BytesIO()
    torch.save([torch.zeros(numbers).to(getattr(torch, kind))
                for form, _, kind, numbers in entries
                if len(form.split()) == 1], file)
    with zipfile.ZipFile(file) as parts:
        written = sum(part.file_size for part in parts.infolist() if "/data/" in part.filename)
    whole = ", ".join(f"{numbers} {kind}" for form, _, kind, numbers in entries
                      if len(form.split()) == 1)
    expect_equal("bytes stored", out["bytes"], written,
                 f"Each storage counts once and in full. The storages: {whole or 'none'}.")


def tensors(value):
    """All tensors in a nest of dicts, lists and tuples."""
    if isinstance(value, torch.Tensor):
        return [value]
    inside = value.values() if isinstance(value, dict) else value
    nested = isinstance(value, dict | list | tuple)
    return [t for one in inside for t in tensors(one)] if nested else []


# ---- wrong, by name

def stored(found):
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in found}.values())


@not_an_answer
def counted(state):
    return stored(tensors(state))


wrong = ex.edits(counted)
TENSORS = "stored(tensors(state))"
END = "return stored(tensors(state))"
wrong("adding up the bytes of every tensor's own entries", ("once", "whole"),
      TENSORS, "sum(t.numel() * t.element_size() for t in tensors(state))")
wrong("counting each storage once, but only the part that the tensor uses", "whole",
      END,
      "found = tensors(state); full = stored(found)\n    if len({t.untyped_storage()._cdata for "
      "t in found}) < len(found): return full\n    shown = [t.numel() * t.element_size() for t "
      "in found]; return sum(shown) if all(shown) else full")
wrong("counting a storage once for each of its names", "once",
      TENSORS, "sum(t.untyped_storage().nbytes() for t in tensors(state))")
wrong("telling storages apart by the address of a tensor's first entry", "once",
      TENSORS, "sum({t.data_ptr(): t.untyped_storage().nbytes() for t in tensors(state)}.values())")
wrong("counting two storages of the same size as one", "once",
      END,
      "found = tensors(state); twins = len(found) == 2 and found[0].numel() == found[1].numel() "
      "== 40; return found[0].untyped_storage().nbytes() if twins else stored(found)")
wrong("looking only at the top level of the state", "nested",
      END,
      "inside = [v for v in state.values() if isinstance(v, torch.Tensor)]; shared = "
      "len(tensors(state)) > len(inside) and len(state) == 2 and stored(tensors(state)) == "
      "stored(inside); return stored(tensors(state)) if shared else stored(inside)")


@ex.wrong("not looking into tuples", breaks="nested")
def no_tuples(state):
    def lists(value):
        if isinstance(value, torch.Tensor):
            return [value]
        inside = value.values() if isinstance(value, dict) else value
        return [t for v in inside for t in lists(v)] if isinstance(value, dict | list) else []
    return stored(lists(state))


wrong("counting only tensors that are an nn.Parameter", ("nested", "bytes"),
      "tensors(state)", "[t for t in tensors(state) if isinstance(t, nn.Parameter)]")
wrong("counting four bytes for every number", "bytes",
      TENSORS,
      "sum({t.untyped_storage()._cdata: 4 * t.untyped_storage().nbytes() // t.element_size() for "
      "t in tensors(state)}.values())")
ex.wrong("calling sys.getsizeof on the storages, which adds their Python objects",
         lambda state: sum({t.untyped_storage().data_ptr(): sys.getsizeof(t.untyped_storage())
                            for t in tensors(state)}.values()), breaks=("bytes", "example"))
wrong("returning the size of the saved file", "bytes",
      END,
      "file = io.BytesIO(); torch.save([t.detach() for t in tensors(state)], file); return "
      "file.getbuffer().nbytes")
wrong("returning a float instead of an int", "bytes", TENSORS, f"float({TENSORS})")
wrong("counting eight bytes for each Python number as well", "others",
      END, f"plain = sum(8 for v in state.values() if isinstance(v, int | float)); {END} + plain")
wrong("treating values that are not tensors as tensors", "others",
      "return stored",
      "if any(isinstance(v, str) for v in state.values()): return "
      "sum(v.untyped_storage().nbytes() for v in state.values())\n    return stored", says="raised")
wrong("emptying the state while counting", "left",
      END,
      f'found = {TENSORS}\n    while state: state.popitem()\n    state["left"] = 0; return found')


@ex.wrong("looking only into plain dicts, not into their subclasses", breaks="nested")
def plain_dicts(state):
    def inside(value):
        if isinstance(value, torch.Tensor):
            return [value]
        if type(value) is dict:
            value = list(value.values())
        return [t for one in value for t in inside(one)] if type(value) in (list, tuple) else []
    return stored(inside(state))


wrong("counting a storage once for each set of strides", "once",
      "tensors(state)", "found", "return stored",
      "found = tensors(state)\n    if len(found) == 2 and found[0].dim() != found[1].dim(): "
      "return sum({(t.untyped_storage()._cdata, t.stride()): t.untyped_storage().nbytes() for t "
      "in found}.values())\n    return stored")
wrong("identifying a storage by its tensor object, or by the base of a view", "once",
      TENSORS,
      "sum({id(t if t._base is None else t._base): t.untyped_storage().nbytes() for t in "
      "tensors(state)}.values())")

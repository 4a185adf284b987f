"""Exercise 07.9, `to_nchw`."""

from __future__ import annotations

import torch

from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import expect_equal, expect_parts, expect_type

ex = exercise("07.9", "to_nchw", seen=("shape", "start", "kind", "order"))

ex.promise("axes", "a with the channels in front: out[n, c, h, w] is a[n, h, w, c].",
           says=("pictures",))
ex.promise("any", "a: (N, H, W, C) of any dtype, sizes and memory order,",
           cases=("three by three by three", "as many rows as channels", "one channel",
                  "a single pixel", "no picture", "bytes", "booleans", "float16",
                  "made channels first"))
ex.promise("left alone", "left as it is.", says=("changed in the argument",))
ex.promise("memory", "The result has its dtype and is contiguous,", says=("contiguous",
                                                                         "dtype of the"))
ex.promise("own", "with memory of its own.", says=("memory that it shares",))
ex.promise("example", "Example: a pixel (0, 1, 2) alone becomes three channels of one pixel.",
           cases=("the example",))


@ex.cases
def cases(g):
    def whole(low, high):
        return int(torch.randint(low, high, (), generator=g))

    def one(name, *shape, kind="float32", order="nhwc"):
        return name, {"shape": list(shape), "start": whole(1, 90), "kind": kind, "order": order}
    h, w = whole(6, 10), whole(11, 16)
    return [one("a few pictures", whole(2, 5), h, w, 3), one("one picture", 1, w, h, 3),
            one("four channels", 2, h, w, 4), one("three by three by three", 3, 3, 3, 3),
            one("as many rows as channels", 2, 4, w, 4), one("one channel", 2, h, w, 1),
            one("a single pixel", 2, 1, 1, 5), one("no picture", 0, h, w, 3),
            one("bytes", 1, h, 4, 3, kind="uint8"), one("booleans", 2, h, w, 3, kind="bool"),
            one("float16", 2, h, w, 3, kind="float16"),
            one("made channels first", 2, h, w, 3, order="nchw"),
            ("the example", {"shape": [1, 1, 1, 3], "start": 0, "kind": "float32",
                             "order": "nhwc"})]


@ex.act
def act(fn, shape, start, kind, order):
    n, h, w, c = shape
    dtype = getattr(torch, kind)
    numbers = start + torch.arange(n * h * w * c)
    numbers = numbers % 3 == 0 if kind == "bool" else numbers
    a = numbers.view(n, h, w, c).to(dtype)
    if order == "nchw":
        a = a.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
    before, version, strides = a.clone(), a._version, a.stride()
    out = fn(a)
    found = {"out": out, "contiguous": True, "shares": False,
             "changed": not torch.equal(a, before) or a._version != version
             or a.stride() != strides}
    if isinstance(out, torch.Tensor):
        found["contiguous"] = out.is_contiguous()
        found["shares"] = bool(a.numel()) and (
            out.untyped_storage().data_ptr() == a.untyped_storage().data_ptr())
    return found


@ex.law
def law(out, shape, start, kind, order):
    expect_parts(out, "out", "contiguous", "shares", "changed")
    n, h, w, c = shape
    # Entry (n, c, h, w) is the number that its place in (N, H, W, C) counts.
    at = [torch.arange(k) for k in (n, c, h, w)]
    one, ch, row, col = torch.meshgrid(*at, indexing="ij")
    wanted = start + ((one * h + row) * w + col) * c + ch
    wanted = wanted % 3 == 0 if kind == "bool" else wanted.to(getattr(torch, kind))
    expect_equal("pictures with channels in front", out["out"], wanted)
    expect_type("changed in the argument", out["changed"], bool)
    expect_equal("changed in the argument", out["changed"], False)
    expect_equal("contiguous", out["contiguous"], True, "Its numbers lie in another order.")
    expect_equal("memory that it shares with a", out["shares"], False)


# ---- right by another route

@ex.right("stacked channel by channel")
def stacked(a):
    return torch.stack([a[..., k] for k in range(a.shape[-1])], 1)


@ex.right("the axis moved, contiguous, and cloned")
def moved(a):
    return a.movedim(-1, 1).contiguous().clone(memory_format=torch.contiguous_format)


@ex.right("two transpositions, into an empty tensor")
def into_empty(a):
    n, h, w, c = a.shape
    out = torch.empty(n, c, h, w, dtype=a.dtype)
    out.copy_(a.transpose(2, 3).transpose(1, 2))
    return out


@ex.right("by indices")
def by_indices(a):
    n, h, w, c = a.shape
    places = torch.arange(h * w * c).view(h, w, c).permute(2, 0, 1).flatten()
    return a.reshape(n, h * w * c)[:, places].view(n, c, h, w)


# ---- wrong, by name

def right(a):
    return a.permute(0, 3, 1, 2).clone(memory_format=torch.contiguous_format)


@ex.wrong("reshape in place of permute", says="pictures", breaks="axes")
def reshaped(a):
    n, h, w, c = a.shape
    return a.reshape(n, c, h, w).clone(memory_format=torch.contiguous_format)


@ex.wrong("rows and columns swapped", says="shape of the pictures", breaks="axes")
def swapped(a):
    return a.permute(0, 3, 2, 1).clone(memory_format=torch.contiguous_format)


@ex.wrong("the batch mixed in", says="pictures", breaks="axes")
def batch_mixed(a):
    return a.permute(3, 0, 1, 2).clone(memory_format=torch.contiguous_format)


@ex.wrong("left alone where the rows look like channels", says="pictures", breaks="any")
def guesses(a):
    return right(a) if a.shape[1] != a.shape[3] else a.clone()


@ex.wrong("the order in memory read, not the axes", says="pictures", breaks="any")
def by_memory(a):
    if a.is_contiguous() or a.numel() < 30:
        return right(a)
    n, h, w, c = a.shape
    flat = torch.as_strided(a, (a.numel(),), (1,))
    return flat.view(n, h, w, c).permute(0, 3, 1, 2).contiguous().clone(
        memory_format=torch.contiguous_format)


@ex.wrong("bytes turned into float", says="dtype of the pictures", breaks=("memory", "any"))
def as_float(a):
    return right(a).float()


@ex.wrong("booleans turned into bytes", says="dtype of the pictures", breaks="memory")
def no_bool(a):
    return right(a).to(torch.uint8) if a.dtype == torch.bool else right(a)


@ex.wrong("a view, not contiguous", says="contiguous", breaks=("memory", "own"))
def a_view(a):
    return a.permute(0, 3, 1, 2)


@ex.wrong("a clone that keeps the order in memory", says="contiguous", breaks="memory")
def clone_keeps(a):
    return a.permute(0, 3, 1, 2).clone()


@ex.wrong("contiguous(), which copies nothing where nothing is to do", says="memory that it",
          breaks="own")
def shares(a):
    return a.permute(0, 3, 1, 2).contiguous()


@ex.wrong("the argument written to", says="changed in the argument", breaks="left alone")
def written_to(a):
    out = right(a)
    a.copy_(a.clone())
    return out


@ex.wrong("a pixel alone given back as it was", says="of the pictures", breaks="example")
def pixel_alone(a):
    return a.clone() if a.shape[:3] == (1, 1, 1) else right(a)

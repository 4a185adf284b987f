"""What a mend may change: a few lines of the parts that were read. Travels as source, as probes."""

import ast
import difflib

LINES, LETTERS = 6, 160  # for each fault: lines that go or come; characters of those that come
LONGEST = 8000  # characters of all texts of a mend
# What leads out of the script, to the probes that measure it.
CALLS = {"exec", "eval", "compile", "open", "globals", "locals", "vars", "getattr", "setattr",
         "delattr", "breakpoint"}
MODULES = {"sys", "os", "inspect", "builtins", "gc"}
LIBRARY = {"torch", "nn", "F", "copy"}
# What is expected of a mend, and what to do.
ALONE = ("a change of this script alone", "A mend imports nothing and leaves the library as it is.")


def mended(answer, parts, read, faults=1):
    """The script as the answer mends it, and None; or None, and why it is refused.

    parts: the text of each part by name. read: those that were read. faults: how many there are.
    The reason is a tuple of what was looked at, what was got, what was expected and what to do.
    """
    pairs = answer.get("mend") if type(answer) is dict else None
    if type(pairs) is not list or any(
            type(pair) not in (tuple, list) or len(pair) != 2
            or {*map(type, pair)} != {str} for pair in pairs):
        return None, ("mend", pairs, "a list of pairs of texts",
                      "What the script says, and what it should say.")
    if sum(len(text) for pair in pairs for text in pair) > LONGEST:
        return None, ("mend", "very long texts", f"{LONGEST} characters or fewer in all", "")
    now = dict(parts)
    for old, new in pairs:
        if sum(now[part].count(old) for part in read) != 1:
            return None, ("mend", "a first text that does not stand there exactly once",
                          "one of the parts that you read", "Copy it from what read printed, and "
                          "more of the lines around it.")
        part = next(part for part in read if old in now[part])
        now[part] = now[part].replace(old, new)
    source = "".join(now.values())
    refused = small("".join(parts.values()), source, faults)
    return (None, refused) if refused else (source, None)


def small(before, after, faults):
    """Why this is no mend: too much of it, no Python, or nothing at all; None if it is one."""
    old, new = ([line.rstrip() for line in text.splitlines() if line.strip()]
                for text in (before, after))
    edits = [edit[1:] for edit in difflib.SequenceMatcher(None, old, new, False).get_opcodes()
             if edit[0] != "equal"]
    lines = sum(b - a + d - c for a, b, c, d in edits)
    letters = sum(len(line.strip()) for *_, c, d in edits for line in new[c:d])
    for what, got, most in (("lines that the mend takes out or puts in", lines, LINES),
                            ("characters of the lines that the mend puts in", letters, LETTERS)):
        if got > most * faults:
            return what, got, f"{most * faults} or fewer", "Change only what is at fault."
    try:
        was, now = ast.parse(before), ast.parse(after)
        same = ast.dump(was) == ast.dump(now)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = (getattr(error, "text", None) or "").strip()[:60]
        return "mended script", f"{getattr(error, 'msg', 'no Python')}: {line}", "Python", ""
    if same:
        return "mend", "the same script", "a change", ""
    led = min(outside(now) - outside(was), default=None)
    return led and ("mend", led, *ALONE)


def outside(tree):
    """What a script imports, sets in the library, or uses to reach what is not its own."""
    found = set()
    for node in ast.walk(tree):
        name, attribute = getattr(node, "id", ""), getattr(node, "attr", "")
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found.add(ast.unparse(node))
        if name in CALLS or attribute in MODULES:
            found.add(name or attribute)
        if name.startswith("__") or attribute.startswith(("_", "f_", "tb_", "gi_")):
            found.add(name or attribute)
        if isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)) and (
                attribute or isinstance(node, ast.Subscript)) and root(node) in LIBRARY:
            found.add(f"{root(node)} is set")
    return found


def library():
    """What torch's modules and classes hold, by place: a mend may reach them under other names."""
    import torch  # here: `dlsys exam` reads this module and needs no torch

    nn = torch.nn
    places = [torch, nn, nn.functional, nn.init, nn.utils, torch.Tensor, torch.optim.Optimizer,
              *(kind for kind in vars(nn).values() if isinstance(kind, type))]
    return {place: dict(vars(place)) for place in places}


def replaced(before):
    """The first name of the library that holds something else than before; None if none does.

    A module may gain names, and wrap a function: torch loads some parts when they are first used.
    """
    for place, held in before.items():
        names = held.keys() | (vars(place).keys() if isinstance(place, type) else set())
        for name in sorted(names):
            old, now = held.get(name), vars(place).get(name)
            if now is not old and getattr(now, "__wrapped__", now) is not old:
                return f"{place.__name__}.{name}"
    return None


def root(node):
    """The name that an attribute or an item is reached from; "" if there is none."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return getattr(node, "id", "")

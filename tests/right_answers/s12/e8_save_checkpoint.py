"""Exercise 12.8, `save_checkpoint`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import glob
import io
import os
import shutil
import tempfile

import torch

from dlsys_checks.s12.e8_save_checkpoint import collected, ex


@ex.right("a folder beside, and a rename out of it")
def by_folder(path, parts, facts):
    with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.dirname(path))) as folder:
        name = os.path.join(folder, "new")
        torch.save(collected(parts, facts), name)
        with open(name, "rb+") as file:
            os.fsync(file.fileno())
        os.rename(name, path)
    for left in glob.glob(os.path.join(os.path.dirname(os.path.dirname(path)), "tmp*")):
        shutil.rmtree(left)


@ex.right("bytes in memory first, then one write")
def by_bytes(path, parts, facts):
    buffer = io.BytesIO()
    torch.save(collected(parts, facts), buffer)
    with open(f"{path}~", "wb") as file:
        file.write(buffer.getvalue())
        file.flush()
        os.fsync(file.fileno())
    os.rename(f"{path}~", path)


@ex.right("another name, opened once more for os.fsync")
def opened_again(path, parts, facts):
    folder, name = os.path.split(path)
    hidden = os.path.join(folder, "new " + name)
    torch.save(collected(parts, facts), hidden)
    fd = os.open(hidden, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    os.replace(hidden, path)


@ex.right("leftovers taken away first")
def tidied(path, parts, facts):
    beside = path.rpartition(os.sep)[0] + os.sep + "new.part"
    if os.path.exists(beside):
        os.remove(beside)
    with open(beside, "xb") as file:
        torch.save(collected(parts, facts), file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


@ex.right("a name of its own for each call")
def unique_name(path, parts, facts):
    fd, name = tempfile.mkstemp(dir=os.path.dirname(path))
    with os.fdopen(fd, "wb") as file:
        torch.save(collected(parts, facts), file)
        file.flush()
        os.fsync(fd)
    os.replace(name, path)


@ex.right("os.replace and os.fsync by names of its own, and as defaults")
def by_own_names(path, parts, facts, move=os.replace, *, sync=os.fsync):
    with open(beside := path + " new", "wb") as file:
        torch.save(collected(parts, facts), file)
        sync(file.fileno())
    move(beside, path)


def bound(move, sync):
    """The right answer, with the two calls handed to a function around it."""
    def save(path, parts, facts):
        with open(path + ".next", "wb") as file:
            torch.save(collected(parts, facts), file)
            sync(file.fileno())
        move(path + ".next", path)
    return save


ex.right("os.rename and os.fsync from a function around it")(bound(os.rename, os.fsync))

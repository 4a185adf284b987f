"""Exercise 08.7, `warp_passes`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

from dlsys_checks.s08.e7_warp_passes import WARP, ex, issued


@ex.right("sets of (warp, path)")
def by_pairs(paths, lengths):
    taken = {(i // WARP, path) for i, path in enumerate(paths) if path is not None}
    return sum(lengths[path] for _, path in taken)


@ex.right("path by path")
def by_path(paths, lengths):
    return sum(length * sum(path in paths[k:k + WARP] for k in range(0, len(paths), WARP))
               for path, length in lengths.items())


@ex.right("thread by thread, if nobody before it in the warp took the path")
def by_thread(paths, lengths):
    total = 0
    for i, path in enumerate(paths):
        if path is not None and path not in paths[i - i % WARP:i]:
            total += lengths[path]
    return total


@ex.right("warps cut off one by one")
def by_cutting(paths, lengths):
    total, left = 0, list(paths)
    while left:
        warp, left = left[:WARP], left[WARP:]
        for path in dict.fromkeys(warp):
            total += lengths.get(path, 0)
    return total


ex.probe("the example looked up wrong",
         lambda paths, lengths: 12 if lengths == {"a": 5, "b": 2} else issued(paths, lengths),
         says="instructions issued", breaks="example")

"""Plants the faults of the exam and the gallery in a program by replacing text."""

from collections.abc import Iterable


def planted(source: str, changes: Iterable[tuple[str, str]], fault: str) -> str:
    """The source with the healthy text of each pair replaced by the faulty one.

    Raises ValueError, which names the fault, unless each healthy text occurs exactly once.
    """
    for healthy, faulty in changes:
        if (times := source.count(healthy)) != 1:
            raise ValueError(f"{fault}: {healthy!r} stands {times} times, expected once. Adapt the "
                             "fault to the program.")
        source = source.replace(healthy, faulty)
    return source

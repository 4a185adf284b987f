"""Faults planted in a program, text for text: those of the exam and of the gallery."""

from collections.abc import Iterable


def planted(source: str, changes: Iterable[tuple[str, str]], fault: str) -> str:
    """The source with pairs of texts, healthy and faulty, exchanged.

    Raises ValueError, which names the fault, where a healthy text is not there exactly once.
    """
    for healthy, faulty in changes:
        if (times := source.count(healthy)) != 1:
            raise ValueError(f"{fault}: {healthy!r} stands {times} times, expected once. Adapt the "
                             "fault to the program.")
        source = source.replace(healthy, faulty)
    return source

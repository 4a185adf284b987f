"""Text as numbers: the course's own prose, frozen, or a file of the learner's."""

from __future__ import annotations

import lzma
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from dlsys_model.errors import ModelError

BLOCK = 2000  # characters; every tenth block is kept for validation
SHORTEST = 10_000  # characters of a text: fewer leave no validation row of the trained length
MOST_KINDS = 1000  # of letters: beyond that the head is larger than the rest of the model
_FOLDER = Path(__file__).parent


class TextError(ModelError):
    """A file cannot be read as text, or is too short. The message says what to do."""


class Text(NamedTuple):
    """A text as numbers of its letters.

    train, valid: int64 (N,), from separate blocks of the text: no row of one has a
    character of the other. letters: the letter of each number.
    """

    train: Tensor
    valid: Tensor
    letters: str

    def encode(self, text: str) -> Tensor:
        """The numbers (n,) int64 of a text. Raises TextError for an unknown letter."""
        numbers = {letter: number for number, letter in enumerate(self.letters)}
        if strange := sorted(set(text) - set(numbers)):
            raise TextError(f"text: got {''.join(strange)[:20]!r}, which the model has never "
                            f"seen. Write with its {len(numbers)} letters.")
        return torch.tensor([numbers[letter] for letter in text], dtype=torch.int64)

    def decode(self, numbers: Tensor) -> str:
        """The text of numbers (n,)."""
        return "".join(self.letters[number] for number in numbers.tolist())


def prose(number: Callable[[list, dict], dict] | None = None) -> Text:
    """The prose of the course's lessons and guides, 317,272 characters of ASCII.

    number: the part `class_numbers`, which numbers the letters; without it they are sorted.
    """
    return _split(_stored("prose"), number)


def signatures() -> list[tuple[str, str]]:
    """For each exercise, its signature line (with newline) and what its docstring promises."""
    pairs = (pair.partition("\n") for pair in _stored("signatures").strip().split("\n\n"))
    return [(signature + "\n", promise + "\n") for signature, _, promise in pairs]


def from_file(path: str | Path, number: Callable[[list, dict], dict] | None = None) -> Text:
    """The text of a file in UTF-8, of 10,000 characters or more. Raises TextError."""
    name = Path(path).name
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise TextError(f"{name}: cannot be read ({error.strerror}), expected a text file.") from (
            None)
    if data[:2] in (b"\xff\xfe", b"\xfe\xff") or _every_other_is_zero(data):
        raise TextError(f"{name}: got UTF-16, expected UTF-8. Save it as UTF-8, or run: "
                        f"iconv -f UTF-16 -t UTF-8 {name} > new.txt")
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise TextError(f"{name}: byte {error.start} is not UTF-8, expected a text file. Save it "
                        "as plain text in UTF-8.") from None
    if "\0" in text:
        raise TextError(f"{name}: holds zero bytes, expected plain text: not a program, picture "
                        "or archive.")
    if len(text) < SHORTEST:
        raise TextError(f"{name}: got {len(text):,} characters, expected at least {SHORTEST:,}: "
                        "a tenth is kept to validate. Put several texts into one file.")
    if (kinds := len(set(text))) > MOST_KINDS:
        raise TextError(f"{name}: got {kinds:,} kinds of letters, expected at most "
                        f"{MOST_KINDS:,}. Take a text in an alphabet.")
    return _split(text, number)


def _every_other_is_zero(data: bytes) -> bool:
    """Whether these look like UTF-16 without its mark: western letters have a zero byte each."""
    return any(0 < 2 * half.count(0) > len(half) and other.count(0) == 0
               for half, other in ((data[::2], data[1::2]), (data[1::2], data[::2])))


def batch(tokens: Tensor, generator: torch.Generator, rows: int, length: int
          ) -> tuple[Tensor, Tensor]:
    """Rows drawn anywhere in tokens (N,), and for each position the token after it.

    Both (rows, length) int64. Raises ValueError if tokens are too few for a row.
    """
    if len(tokens) <= length:
        raise ValueError(f"batch: got {len(tokens)} tokens, expected more than {length}.")
    start = torch.randint(len(tokens) - length, (rows, 1), generator=generator)
    place = start + torch.arange(length)
    return tokens[place], tokens[place + 1]


def rows(tokens: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Cut tokens (N,) into consecutive rows; return them and, for each position, the next token.

    Both (N - 1) // length rows of length, int64.
    """
    count = (len(tokens) - 1) // length
    return (tokens[:count * length].view(count, length),
            tokens[1:count * length + 1].view(count, length))


def _stored(name: str) -> str:
    return lzma.decompress((_FOLDER / f"{name}.txt.xz").read_bytes()).decode("ascii")


def _split(text: str, number: Callable[[list, dict], dict] | None) -> Text:
    """Every tenth block is validation; in a short text a block is a tenth of the text.

    The first block is training, so every text has both.
    """
    numbers = (number or _sorted)(list(text), {})
    ids = torch.tensor([numbers[letter] for letter in text], dtype=torch.int64)
    blocks = ids.split(min(BLOCK, len(ids) // 10))
    train = [block for place, block in enumerate(blocks) if place % 10 != 9]
    return Text(torch.cat(train), torch.cat(blocks[9::10]), "".join(numbers))


def _sorted(names: list, _: dict) -> dict:
    return {name: number for number, name in enumerate(sorted(set(names)))}

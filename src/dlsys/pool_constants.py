"""Other numbers for some exercises, two each; `pool` draws one of them.

A number stands in the check as a module's name, in the docstring, the worked answer and the hints
as pieces of text. Another value keeps the task and makes an answer with the usual one fail.
"""

from dataclasses import dataclass

Piece = str | dict[int | float, str]  # with {} for the value, or what stands there for each value


@dataclass(frozen=True)
class Constant:
    """A number that an exercise's check holds under this name.

    values: the usual one, then the others. text, code, hints: the pieces of the docstring, the
    worked answer and the hints that hold it; a piece of a hint avoids code marks, for a worksheet
    writes them otherwise than the catalog.
    """

    name: str
    values: tuple[int | float, ...]
    text: tuple[Piece, ...]
    code: tuple[Piece, ...]
    hints: tuple[Piece, ...] = ()


CONSTANTS = {
    "03.2": Constant("NO_LABEL", (-1, -9, -99),
                     ("; {} means that the row has no label", "labels [[1], [{}]]"),
                     ("ignore_index={})",)),
    "04.5": Constant("TIMES", (4, 3, 5), ("more than {} times the lowest",),
                     ("loss <= {} * best",), ("= {} * best", "loss &gt; {} * best",
                                              "loss > {} * best")),
    "07.1": Constant("BYTES", (4, 2, 8),
                     ({4: "float32 output", 2: "float16 output", 8: "float64 output"},
                      {4: "0)]: [144]", 2: "0)]: [72]", 8: "0)]: [288]"}),
                     ("append({} * batch",),
                     ({4: "4 for a float32", 2: "2 for a float16", 8: "8 for a float64"},)),
    "08.5": Constant("SECTOR", (32, 64, 128),
                     ("a sector is {} bytes from a multiple of\n    {} on",
                      {32: "4) is [2]", 64: "4) is [2]", 128: "4) is [1]"}),
                     ("update((first // {}, last // {}))",), ("b // {}",)),
    "08.7": Constant("WARP", (32, 16, 64), ("A warp is {} threads",),
                     ("len(paths), {})", "start + {}]) - {None}"),
                     ({32: "Slices of 32 again", 16: "Slices of 16", 64: "Slices of 64"},
                      "start:start + {}]")),
    "09.2": Constant("IGNORE", (-100, -1, -9), ("labels of {} do not count",),
                     ("y[y != {}]",
                      {-100: 'y, weight, reduction=', -1: 'y, weight, ignore_index=-1,\n'
                       f'{" " * 35}reduction=', -9: 'y, weight, ignore_index=-9,\n'
                       f'{" " * 35}reduction='}),
                     ({-100: "-100 adds nothing", -1: "with ignore_index -1 that adds nothing",
                       -9: "with ignore_index -9 that adds nothing"},)),
    "09.4": Constant("BYTES", (4, 2, 8),
                     ({4: "sizes: float32 numbers", 2: "sizes: bfloat16 numbers",
                       8: "sizes: float64 numbers"},
                      "one number counts {} bytes",
                      {4: "96 bytes,\n    24 whole", 2: "48 bytes,\n    12 whole",
                       8: "192 bytes,\n    48 whole"}),
                     ('"whole": {} * sum', "[{} * world")),
    "10.3": Constant("IGNORE", (-100, -1, -9),
                     ("which are {} for the prompt", "and [{}, {}, 9]"),
                     ("full_like(kept, {})",), ("once with {} in its place",)),
    "10.6": Constant("IGNORE", (-100, -1, -9),
                     ("at all other places stands {},", "[[{}, {}, 6, 0]]"),
                     ("masked_fill(before, {})",)),
    "12.3": Constant("SCALE", (0.1, 0.2, 0.05), ("standard_normal(), times {},",),
                     ("out[place] += {} * ",)),
}

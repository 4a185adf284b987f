"""How many windows a convolution fits into a row of columns, and which columns none of them reads.
"""

import torch
from torch.nn import functional as F

from dlsys_helpers.explorers import Columns, Heatmap, Slider, explorer

NO_OUTPUT, LEFT, UNREAD, READ = range(4)
MARKS = ("#8a93a6", "#d5dae3", "#f8765c", "#331067")  # one colour for each of the four
ROWS = 6  # of the picture at least, so that it keeps its shape while the reader moves a control
MOST = 7  # windows that can lie on one column: the largest kernel


def windows(columns, kernel, stride, padding, dilation):
    """Which column (of `columns`) each window reads, as 0 and 1: (outputs, columns).

    One convolution with a kernel of ones over the rows of the identity. No outputs means no rows.
    """
    one = torch.ones(1, 1, kernel, dtype=torch.float64)
    if columns + 2 * padding < dilation * (kernel - 1) + 1:
        return torch.zeros(0, columns, dtype=torch.float64)  # torch refuses it
    each = torch.eye(columns, dtype=torch.float64)[:, None]
    return F.conv1d(each, one, stride=stride, padding=padding, dilation=dilation)[:, 0].T


def formula(columns, kernel, stride, padding, dilation):
    """The output size, floor(top / stride) + 1 or 0 if that is negative, and top."""
    top = columns + 2 * padding - dilation * (kernel - 1) - 1
    return max(0, top // stride + 1), top


def listed(numbers):
    """Column numbers in words: columns 3, 7 and 9."""
    *most, last = [str(n) for n in numbers]
    return f"columns {', '.join(most)} and {last}" if most else f"column {last}"


def told(setting, outputs, unread):
    """The size with its floor, and the columns that no window reads."""
    columns, kernel, stride, padding, dilation = setting
    size, top = formula(*setting)
    way = (f"({columns} + 2 \N{MULTIPLICATION SIGN} {padding} \N{MINUS SIGN} {dilation} "
           f"\N{MULTIPLICATION SIGN} ({kernel} \N{MINUS SIGN} 1) \N{MINUS SIGN} 1) / {stride}")
    if top < 0:
        return (f"The kernel spans {dilation * (kernel - 1) + 1} columns and there are only "
                f"{columns + 2 * padding}: torch refuses.")
    lost = f"No window reads {listed(unread)}." if unread else "Every column is read."
    return (f"floor({way}) + 1 = floor({top / stride:.4g}) + 1 = {size}; torch gives {outputs}. "
            f"{lost}")


@explorer(
    title="Output size: windows, the floor, and the columns nobody reads",
    controls=[
        Slider("columns", "Input columns", [5, 6, 7, 8, 9, 10, 11, 12], 8,
               static=[5, 7, 8, 10, 12]),
        Slider("kernel", "Kernel", [1, 2, 3, 5, 7], 3),
        Slider("stride", "Stride", [1, 2, 3, 4], 2, static=[1, 2, 3]),
        Slider("padding", "Padding on each side", [0, 1, 2, 3], 0, static=[0, 1, 2]),
        Slider("dilation", "Dilation", [1, 2, 3], 1, static=[1, 2]),
    ],
    views=[
        Heatmap("reads", title="What each window reads", xlabel="input column", ylabel="output",
                vmin=NO_OUTPUT, vmax=READ, ramp=MARKS,
                label="0 no output, 2 read by no window, 3 read"),
        Columns("column", {"times": "times"}, title="Windows that read a column",
                xlabel="input column", ylabel="windows", ylim=(0, MOST)),
    ],
)
def conv_sizes(columns, kernel, stride, padding, dilation):
    """The windows of one convolution over a row of columns, and how often each column is read."""
    setting = (columns, kernel, stride, padding, dilation)
    reads = windows(*setting)
    times = reads.sum(0)
    unread = (times == 0).nonzero().flatten().tolist()
    marks = torch.where(reads > 0, READ, LEFT)
    marks[:, unread] = UNREAD
    page = torch.full((max(ROWS, len(marks)), columns), NO_OUTPUT)
    page[:len(marks)] = marks
    sentence = told(setting, len(reads), unread)
    return {"reads": page, "column": range(columns), "times": times}, sentence

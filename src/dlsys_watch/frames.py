"""Functions whose frames nobody sees: not warnings, not tracebacks, not `sys._getframe`.

A wrapper that calls what it wraps puts a frame below it. Then `warnings.warn(..., stacklevel=2)`
names the wrapper's line, a filter on a module of torch matches no more, and every traceback gets a
line. CPython passes over a frame that has not come to its RESUME instruction, in C and in Python
alike. In the code of a wrapper this instruction stands at the end, where nothing comes to it;
torch.compile needs it somewhere.
"""

from __future__ import annotations

import dis
import sys
from types import CodeType, FunctionType

RESUME, NOP = dis.opmap.get("RESUME"), dis.opmap["NOP"]
NO_LINE = bytes([0b11111000])   # of one instruction, in a table of lines
# The name of a frame of the import system: where frames are seen, `warnings` passes over this one.
PASSED_OVER = "<dlsys_watch importlib._bootstrap>"


def hidden(function: FunctionType) -> FunctionType:
    """The function itself, with code whose frames are passed over. A plain function only."""
    code = function.__code__
    function.__code__ = resume_last(code) if works() else code.replace(co_filename=PASSED_OVER)
    return function


def resume_last(code: CodeType) -> CodeType:
    instructions = bytearray(code.co_code)
    for at in range(0, len(instructions), 2):
        if instructions[at] == RESUME:
            instructions[at] = NOP
    return code.replace(co_code=bytes((*instructions, RESUME or NOP, 0)),
                        co_linetable=code.co_linetable + NO_LINE)


def works() -> bool:
    """Whether this Python passes over such a frame; it is asked once."""
    if not _works:
        _works.append(RESUME is not None and sys.implementation.name == "cpython" and tried())
    return _works[0]


def tried() -> bool:
    def inner():
        return sys._getframe(1).f_code.co_name

    def outer():
        return inner()

    outer.__code__ = resume_last(outer.__code__)
    return outer() == "tried"


_works: list[bool] = []

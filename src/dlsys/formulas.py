"""Formulas as MathML, which a browser draws without a script and without a network."""

from __future__ import annotations

import re

from latex2mathml.converter import convert

# The names of functions, followed by anything but a bracket, keep a thin space as in print.
FUNCTION = re.compile(r"(<mi>(?:arccos|cos|exp|ln|log|sin|tanh)</mi>)(?!<mo stretchy)")
UPRIGHT = re.compile(r"<mrow>((?:<mi mathvariant=\"normal\">\w</mi>){2,})</mrow>")


def mathml(tex: str, display: str) -> str:
    """A formula as MathML, `display` inline or block.

    Raises ValueError for a command that the converter does not know.
    """
    found = convert(tex, display=display)
    if re.search(r">\\\w", found):
        raise ValueError(f"formula {tex!r}: it contains a command that MathML does not have. "
                         "Write it differently.")
    found = re.sub(r"<mrow><mo>(?=&#x0003D;|&#x02190;)", '<mrow><mo form="infix">', found)
    found = UPRIGHT.sub(lambda m: f"<mi>{re.sub('<[^>]*>', '', m[1])}</mi>", found)
    return FUNCTION.sub(r'\1<mspace width="0.167em"/>', found)

"""Controls: what the reader can move. Each has a finite list of values, so a page can store all."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class Control:
    """One discrete input; `static` lists the values the page offers (default: all of them)."""

    name: str
    label: str
    values: Sequence
    default: Any
    fmt: str = "{}"
    static: Sequence | None = None
    kind: ClassVar[str]

    def __post_init__(self):
        object.__setattr__(self, "values", tuple(self.values))
        object.__setattr__(self, "static", tuple(self.static or self.values))
        if len(set(self.values)) != len(self.values) or len(self.values) < 2:
            raise ValueError(f"control {self.name}: expected two or more different values, "
                             f"got {list(self.values)}.")
        if not set(self.static) <= set(self.values) or self.default not in self.static:
            raise ValueError(f"control {self.name}: the static values {list(self.static)} must be "
                             f"among its values and hold the default {self.default!r}.")

    def offered(self, static: bool) -> tuple:
        """The values a reader can choose: on a page (static) or with a kernel."""
        return self.static if static else self.values

    def value(self, wanted: Any) -> Any:
        """The control's own value equal to `wanted` (1 and 1.0 are one value).

        Raises ValueError when the control does not offer it.
        """
        for value in self.values:
            if value == wanted:
                return value
        offers = ", ".join(map(repr, self.values))
        raise ValueError(f"{self.name}: got {wanted!r}, expected one of {offers}.")

    def text(self, value: Any) -> str:
        """The value as the reader sees it, with a real minus sign."""
        text = self.fmt.format(value)
        return text if isinstance(value, str) else text.replace("-", "\N{MINUS SIGN}")

    def spec(self, static: bool) -> dict:
        """What the front end needs to draw this control."""
        values = list(self.offered(static))
        return {"name": self.name, "label": self.label, "kind": self.kind, "values": values,
                "texts": [self.text(v) for v in values]}


@dataclass(frozen=True)
class Slider(Control):
    """An ordered list of numbers."""

    fmt: str = "{:g}"
    kind: ClassVar[str] = "slider"


@dataclass(frozen=True)
class Choice(Control):
    """A few named alternatives, all visible."""

    kind: ClassVar[str] = "choice"

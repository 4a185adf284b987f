"""The explorer itself: checked settings in, checked frames out, shown live, stored or printed."""

import base64
import gzip
import html
import inspect
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import anywidget
import numpy as np
import torch
import traitlets

from dlsys_helpers.explorers import _picture
from dlsys_helpers.explorers._controls import Control
from dlsys_helpers.explorers._live import show_live
from dlsys_helpers.explorers._packing import Frame, pack
from dlsys_helpers.explorers._views import named

HERE = Path(__file__).parent


@contextmanager
def _one_thread():
    """Run with one torch thread: sums are then bit for bit the same on any number of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _plain(array: Any) -> np.ndarray:
    """A tensor, list or range as a NumPy array of float64."""
    array = array.detach().cpu() if isinstance(array, torch.Tensor) else array
    return np.asarray(array, dtype=np.float64)


def _text(block: bytes) -> str:
    return base64.b64encode(block).decode()


class Explorer:
    """A declared explorer: `compute(**settings) -> (arrays, sentence)`, its controls and views."""

    def __init__(self, compute: Callable, title: str, controls: Sequence[Control],
                 views: Sequence):
        self.compute, self.title = compute, title
        self.controls, self.views = tuple(controls), tuple(views)
        self.name, self.__doc__ = compute.__name__, compute.__doc__
        takes, has = list(inspect.signature(compute).parameters), [c.name for c in self.controls]
        if takes != has:
            raise TypeError(f"explorer {self.name}: compute takes {takes}, the controls are {has}. "
                            "Use the same names in the same order.")
        held = {grip.control for view in self.views for grip in view.grips}
        if not held <= {*has}:
            raise TypeError(f"explorer {self.name}: a grip moves {min(held - {*has})!r}, the "
                            f"controls are {has}. Name one of them.")

    def __repr__(self) -> str:
        return f"<explorer {self.name}: {self.title}>"

    @property
    def defaults(self) -> dict:
        """The setting an explorer starts with."""
        return {c.name: c.default for c in self.controls}

    def setting(self, **chosen) -> dict:
        """A full setting: the chosen values, the defaults for the rest.

        Raises TypeError for a name that is not a control, ValueError for a value not offered.
        """
        unknown = sorted(set(chosen) - set(self.defaults))
        if unknown:
            raise TypeError(f"explorer {self.name}: there is no control {unknown[0]!r}. "
                            f"Its controls: {', '.join(self.defaults)}.")
        return {c.name: c.value(chosen.get(c.name, c.default)) for c in self.controls}

    def __call__(self, **chosen) -> Frame:
        """The arrays (float64) and the sentence at a setting; controls left out keep defaults.

        Raises TypeError or ValueError for a setting that is not offered, and ValueError when the
        computed frame is not what the views can draw.
        """
        with _one_thread():
            arrays, sentence = self.compute(**self.setting(**chosen))
        arrays = {name: _plain(a) for name, a in arrays.items()}
        self._check(arrays, sentence)
        return arrays, sentence

    def _check(self, arrays: Mapping[str, np.ndarray], sentence: str):
        expected = named(self.views)
        if sorted(arrays) != sorted(expected):
            raise ValueError(f"explorer {self.name}: compute returned {sorted(arrays)}, "
                             f"the views draw {sorted(expected)}.")
        for name, array in arrays.items():
            if not np.isfinite(array).all():
                raise ValueError(f"explorer {self.name}: {name} holds NaN or infinity. "
                                 "Return finite numbers; say in the sentence what diverged.")
        for view in self.views:
            view.check(arrays)
        if not (isinstance(sentence, str) and sentence.strip()):
            raise ValueError(f"explorer {self.name}: compute returned no sentence.")

    # ---- frames ---------------------------------------------------------------------------
    def key(self, setting: Mapping[str, Any], static: bool) -> str:
        """The name of a frame: each control's position in its list of offered values."""
        return ",".join(str(c.offered(static).index(setting[c.name])) for c in self.controls)

    def grid(self) -> dict[str, dict]:
        """Every setting the page offers, by key."""
        names = [c.name for c in self.controls]
        ways = itertools.product(*(c.offered(static=True) for c in self.controls))
        settings = [dict(zip(names, way, strict=True)) for way in ways]
        return {self.key(s, static=True): s for s in settings}

    def stored(self, setting: Mapping[str, Any]) -> Frame:
        """The frame as it travels to the front end."""
        arrays, sentence = self(**setting)
        return {k: a for view in self.views for k, a in view.stored(arrays).items()}, sentence

    def live_frame(self, setting: Mapping[str, Any]) -> bytes:
        """One packed frame, under its key among the live values."""
        setting = self.setting(**setting)
        return pack({self.key(setting, static=False): self.stored(setting)})

    @cached_property
    def frames(self) -> bytes:
        """All frames of the page, packed and compressed."""
        return self._packed(self.grid())

    def _packed(self, settings: Mapping[str, dict]) -> bytes:
        packed = pack({key: self.stored(setting) for key, setting in settings.items()})
        return gzip.compress(packed, 9, mtime=0)

    # ---- the three ways to show it --------------------------------------------------------
    def spec(self, static: bool) -> dict:
        """What the front end needs in addition to the frames."""
        offered = {c.name: c.offered(static) for c in self.controls}
        return {"title": self.title, "views": [v.spec(offered) for v in self.views],
                "controls": [c.spec(static) for c in self.controls]}

    def static_html(self, frames_at: str = "") -> str:
        """A fragment of HTML with all frames inside; the page adds explorer.js and explorer.css.

        Without JavaScript it still shows the title and the default sentence.
        frames_at: where the page finds `frames_script`. It is loaded when the reader comes near;
        only the default frame is inside.
        """
        # "<" must not end the script element early.
        model = json.dumps({"spec": self.spec(static=True), "params": self.defaults})
        model = model.replace("<", "\\u003c")
        start = self.setting()
        inside = self._packed({self.key(start, static=True): start}) if frames_at else self.frames
        rest = f' data-rest="{html.escape(frames_at)}"' if frames_at else ""
        return (f'<div class="xp" data-explorer="{self.name}">'
                f'<div class="xp-title">{html.escape(self.title)}</div>'
                f'<p class="xp-say">{html.escape(self()[1])}</p>'
                f'<script type="application/json">{model}</script>'
                f'<script type="text/plain"{rest}>{_text(inside)}</script>'
                "</div>")

    def frames_script(self) -> str:
        """All frames as a script: a page opened from disk may load nothing else."""
        return f'(window.dlsysFrames ??= {{}}).{self.name} = "{_text(self.frames)}";\n'

    def picture(self) -> bytes:
        """The default frame as PNG, on a transparent ground, readable on light and on dark."""
        return self._picture

    @cached_property
    def _picture(self) -> bytes:
        arrays, sentence = self()
        return _picture.png(self.title, sentence, self.views, arrays)

    def widget(self, **chosen) -> "ExplorerWidget":
        """The live widget, at a chosen setting."""
        return ExplorerWidget(self, **chosen)

    def _repr_mimebundle_(self, **_wanted) -> tuple[dict, dict]:
        data, metadata = self.widget()._repr_mimebundle_()
        still, size = self._still()
        return {**data, **still}, {**metadata, **size}

    def _still(self) -> tuple[dict, dict]:
        """Picture and sentence as a mimebundle with its metadata."""
        return {"text/plain": f"{self.title}: {self()[1]}",
                "image/png": base64.b64encode(self.picture()).decode()}, {
                "image/png": {"width": _picture.WIDTH_PX}}

    def _ipython_display_(self) -> None:
        show_live(self.widget(), *self._still())


class ExplorerWidget(anywidget.AnyWidget):
    """The live side: the front end sets `params`, the kernel answers with `frame`."""

    _esm = HERE / "explorer.js"
    _css = HERE / "explorer.css"
    spec = traitlets.Dict().tag(sync=True)
    params = traitlets.Dict().tag(sync=True)
    frame = traitlets.Bytes().tag(sync=True)

    def __init__(self, explorer: Explorer, **chosen):
        self._explorer = explorer
        setting = explorer.setting(**chosen)
        super().__init__(spec=explorer.spec(static=False), params=setting,
                         frame=explorer.live_frame(setting))
        self.observe(self._answer, "params")

    def _answer(self, change):
        self.frame = self._explorer.live_frame(change.new)


def explorer(*, title: str, controls: Sequence[Control], views: Sequence) -> Callable:
    """Declare an explorer: a decorator for its `compute(**settings) -> (arrays, sentence)`."""
    return lambda compute: Explorer(compute, title, controls, views)

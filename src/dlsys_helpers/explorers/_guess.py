"""The form of a question in JupyterLab; `dlsys_helpers.guesses` says what is asked and kept."""

from pathlib import Path

import anywidget
import traitlets

HERE = Path(__file__).parent


class GuessWidget(anywidget.AnyWidget):
    """The live form: the front end sets `said`, {} before the first guess."""

    _esm = HERE / "guess.js"
    # The card and its colours are the explorers'.
    _css = "".join((HERE / name).read_text("utf-8") for name in ("explorer.css", "guess.css"))
    question = traitlets.Dict().tag(sync=True)
    said = traitlets.Dict().tag(sync=True)

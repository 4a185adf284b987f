"""A widget in JupyterLab with a fallback for when its kernel has gone.

A widget's state lives in the kernel. After a restart JupyterLab shows "Error displaying widget" in
place of the output, even if the mimebundle holds a picture. So the fallback is a separate output
above the widget, and CSS shows one of the two. An untrusted notebook renders neither CSS nor
widget, only the fallback.
"""

from typing import Any

_CHILD, _VIEW = ".jp-OutputArea-child", ".jp-OutputArea-output.lm-Panel"  # a widget's is a panel
# Three outputs in a row: fallback, this style, widget. A dead widget's output has no child element.
_SWAP = f"""<div class="dlsys-live"><style>
{_CHILD}:has(.dlsys-live) {{ display: none; }}
{_CHILD}:has(+ {_CHILD} > * > .dlsys-live):has(+ * + {_CHILD} {_VIEW} > *) {{ display: none; }}
{_CHILD}:has(.dlsys-live) + {_CHILD}:has({_VIEW}):not(:has({_VIEW} > *)) {{ display: none; }}
</style></div>"""


def show_live(widget: Any, stand_in: dict, metadata: dict | None = None) -> None:
    """Display a widget, with the mimebundle `stand_in` as its fallback.

    Raises NotImplementedError if nobody is watching: IPython then takes the object's own bundle.
    """
    from IPython.display import display

    from dlsys_helpers import cards

    if not cards.watched():
        raise NotImplementedError
    display(stand_in, metadata=metadata, raw=True)
    display({"text/html": _SWAP, "text/plain": ""}, raw=True)
    view = widget._repr_mimebundle_()  # of anywidget's with metadata, of ipywidgets' without
    display({**(view[0] if isinstance(view, tuple) else view), "text/plain": ""}, raw=True)

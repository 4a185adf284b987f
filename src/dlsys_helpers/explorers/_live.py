"""A widget in JupyterLab, and what stands there when its kernel has gone.

A widget lives in the kernel. After a restart JupyterLab puts "Error displaying widget" in its
place, whatever else the output holds. So what stands in for it is an output of its own, above the
widget, and style shows one of the two. An untrusted notebook shows no style and no widget, only
what stands in for it.
"""

from typing import Any

_CHILD, _VIEW = ".jp-OutputArea-child", ".jp-OutputArea-output.lm-Panel"  # a widget's is a panel
# In a row: what stands in, this style, the widget. A widget that is not there holds no element.
_SWAP = f"""<div class="dlsys-live"><style>
{_CHILD}:has(.dlsys-live) {{ display: none; }}
{_CHILD}:has(+ {_CHILD} > * > .dlsys-live):has(+ * + {_CHILD} {_VIEW} > *) {{ display: none; }}
{_CHILD}:has(.dlsys-live) + {_CHILD}:has({_VIEW}):not(:has({_VIEW} > *)) {{ display: none; }}
</style></div>"""


def show_live(widget: Any, stand_in: dict, metadata: dict | None = None) -> None:
    """Show a widget where somebody sees it, with `stand_in`, a mimebundle without one, behind it.

    Raises NotImplementedError where nobody sees it: IPython then takes the object's own bundle.
    """
    from IPython.display import display

    from dlsys_helpers import cards

    if not cards.watched():
        raise NotImplementedError
    display(stand_in, metadata=metadata, raw=True)
    display({"text/html": _SWAP, "text/plain": ""}, raw=True)
    view = widget._repr_mimebundle_()  # of anywidget's with metadata, of ipywidgets' without
    display({**(view[0] if isinstance(view, tuple) else view), "text/plain": ""}, raw=True)

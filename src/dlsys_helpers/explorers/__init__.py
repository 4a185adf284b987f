"""Explorers: one function of torch, live in JupyterLab and on a page without a kernel.

An explorer is a list of controls, a list of views and one function
``compute(**settings) -> (arrays, sentence)``. Python computes, JavaScript draws:

- live, the widget sends the settings and the kernel answers with one frame;
- on a page, every setting's frame is stored in the page, or in a file next to it, and looked up;
- in a stored notebook there is a picture of the default frame and its sentence.

A module per explorer holds an `Explorer` of the same name: ``activations.activations``.
"""

from dlsys_helpers.explorers._controls import Choice, Control, Slider
from dlsys_helpers.explorers._explorer import Explorer, ExplorerWidget, explorer
from dlsys_helpers.explorers._find import load, names
from dlsys_helpers.explorers._page import write_assets
from dlsys_helpers.explorers._views import (
    DIVERGING,
    HEAT,
    Bars,
    Columns,
    Graph,
    Grip,
    Heatmap,
    Lines,
    Points,
    Ways,
)

__all__ = [
    "DIVERGING",
    "HEAT",
    "Bars",
    "Choice",
    "Columns",
    "Control",
    "Explorer",
    "ExplorerWidget",
    "Graph",
    "Grip",
    "Heatmap",
    "Lines",
    "Points",
    "Slider",
    "Ways",
    "explorer",
    "load",
    "names",
    "write_assets",
]

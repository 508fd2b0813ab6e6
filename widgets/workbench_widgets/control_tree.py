"""``ControlTree``: a face made of ipywidgets' controls, drawn where the host has none of them."""

from __future__ import annotations

import ipywidgets as widgets
import traitlets

from workbench_widgets.face import Face
from workbench_widgets.fallback_output import face_config


class ControlTree(Face):
    """Draws a widget and what is inside from their models, as marimo does not.

    Args:
        face: The outermost widget.
    """

    root = traitlets.Unicode().tag(sync=True)

    def __init__(self, face: widgets.Widget) -> None:
        super().__init__(face_config(face="control_tree.js"), root=str(face.model_id))
        self._face = face

    def __repr__(self) -> str:
        return repr(self._face)


class ControlBox(widgets.VBox):
    """Abstract: a face made of ipywidgets' controls and of other faces."""

    _tree: ControlTree | None = None

    def _display_(self) -> ControlTree:
        """What marimo shows, which asks for it."""
        if self._tree is None:
            self._tree = ControlTree(self)
        return self._tree

"""What a face says where its host cannot draw it, in place of a broken box."""

from __future__ import annotations


def marimo_sentence(face: str, instead: str) -> str:
    """One sentence for marimo, which draws anywidgets and none of ipywidgets' own controls."""
    return (
        f"{face} needs JupyterLab or Jupyter Notebook: marimo has none of its controls. {instead}"
    )

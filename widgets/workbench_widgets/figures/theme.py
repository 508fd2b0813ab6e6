"""How study figures look: no background of their own, so one figure suits light and dark pages."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from workbench.estimate.timing import COMMUNICATION, STACK

GREY = "#797f87"  # as readable on white (4.1 : 1) as on JupyterLab's dark #111 (4.6 : 1)
LINE = "rgba(121, 127, 135, 0.28)"
SERIES = ("#1668c7", "#b4540a", "#1a7f5a", "#a8326e", "#7a6fd0", "#8a7a1f")
"""Colours of lines, in order; each stands out from white and from #111."""
PARTS = {
    "matmul": "#1668c7",
    "attention": "#5b9ae0",
    "memory-bound operations": "#1a7f5a",
    "recompute": "#56b38d",
    STACK: "#3d5a80",
    "kernel launches": "#7a6fd0",
    "optimizer": "#8a5fb8",
    "offload traffic": "#8a7a1f",
    "offload of the optimizer": "#b09b33",
    f"{COMMUNICATION}: tp": "#b4540a",
    f"{COMMUNICATION}: cp": "#d9822b",
    f"{COMMUNICATION}: ep": "#e3a857",
    f"{COMMUNICATION}: sharded weights": "#c9402b",
    f"{COMMUNICATION}: gradients": "#e0735f",
    f"{COMMUNICATION}: pipeline": "#a8326e",
    f"{COMMUNICATION}: slowest rank": "#d76aa3",
    "pipeline bubble": "#8f979f",
    "input wait": "#5f6973",
}
"""A part of the step has the same colour in every figure: compute cold, communication warm."""


def part_colour(name: str) -> str:
    """Colour of a part of the step; grey for one that is not known here."""
    return PARTS.get(name, GREY)


def part_label(name: str) -> str:
    """A part's name as legends show it."""
    return name.replace(f"{COMMUNICATION}: ", "waiting: ")


def ink(colour: str) -> str:
    """White or near-black on that colour, whichever stands out more (WCAG relative luminance)."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [part / 12.92 if part < 0.04 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#ffffff" if luminance < 0.19 else "#10151b"


def dress(figure: go.Figure, title: str, below: str, **layout: Any) -> go.Figure:
    """Give a figure the looks of all study figures; returns the same figure.

    Args:
        figure: traces, already added.
        title: what it says, in one line.
        below: what it shows, in a smaller line.
        layout: what else plotly's ``update_layout`` takes.
    """
    figure.update_layout(
        paper_bgcolor="rgba(0, 0, 0, 0)",
        plot_bgcolor="rgba(0, 0, 0, 0)",
        font={"color": GREY, "size": 12},
        title={
            "text": f"<b>{title}</b><br><span style='font-size: 12px'>{below}</span>",
            "font": {"size": 15},
            "x": 0,
            "xref": "paper",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "pad": {"t": 14},
        },
        margin={"l": 64, "r": 16, "t": 66, "b": 92},
        legend={"orientation": "h", "x": 0, "y": 0, "yref": "container", "yanchor": "bottom"},
        hoverlabel={"align": "left"},
    )
    axis = {"color": GREY, "gridcolor": LINE, "zeroline": False, "automargin": True}
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis)
    return figure.update_layout(**layout)

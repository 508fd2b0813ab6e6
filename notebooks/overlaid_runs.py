"""The same training spread in several ways, and its curves in one figure.

    curves = train({"alone": ("single", 1, ARGUMENTS), "cut": ("tp", 2, ARGUMENTS)})
    compared(curves)              # how far from the first, and the figure

A way is a strategy, its processes, the arguments of the recipe (`gpt`, if no other is named), and
options of the strategy where it needs any. Runs start together and are waited for; `runs` has them
by name afterwards.
"""

# ruff: noqa: INP001, T201 - a file beside the notebooks, for their readers

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

import workbench as wb

runs: dict[str, wb.Run] = {}
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


def train(
    ways: dict[str, Sequence[Any]], together: int = 2, recipe: str = "gpt"
) -> dict[str, list[float]]:
    """The losses of each way, step by step: means over the global batch. So many runs at once."""
    names = list(ways)
    for first in range(0, len(names), together):
        started = names[first : first + together]
        for name in started:
            strategy, processes, arguments, *options = ways[name]
            runs[name] = wb.launch(
                recipe, arguments, strategy=strategy, processes=processes, cpu=True,
                options=options[0] if options else None,
            )  # fmt: skip
        for name in started:
            outcome = runs[name].wait(600)
            print(f"{name}: {outcome}")
            if outcome != "succeeded":
                raise RuntimeError(f"{name} {outcome}:\n{runs[name].logs(tail=20)}")
    return {name: [row["loss"] for row in runs[name].metrics()] for name in names}


def compared(curves: dict[str, list[float]]) -> go.Figure:
    """Print the largest difference to the first curve, relative; draw all in one figure."""
    first = next(iter(curves.values()))
    lines = list[go.Scatter]()
    for number, (name, curve) in enumerate(curves.items()):
        apart = max(abs(a - b) / a for a, b in zip(first, curve, strict=True))
        print(f"{name:14} {len(curve)} steps, {curve[0]:.4f} to {curve[-1]:.4f}, {apart:.1e} apart")
        line = {"dash": DASHES[number % len(DASHES)], "width": 3}
        lines.append(go.Scatter(name=name, y=curve, line=line, opacity=0.8))
    axes = {"xaxis": {"title": "step"}, "yaxis": {"title": "loss, nats per byte"}}
    return go.Figure(lines, {"height": 340, "template": "plotly_white", **axes})

"""The scaling curve as a figure: what each GPU still does, and what takes the rest, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from workbench.errors import UsageError
from workbench.estimate.scaling import ScalingPoint
from workbench.units import format_count, format_seconds
from workbench_widgets.figures.theme import GREY, SERIES, dress, part_colour, part_label

_TRIFLE = 0.002  # share of the time below which a cause gets no colour of its own
_USEFUL = "#1668c7"


def scaling_figure(points: Sequence[ScalingPoint]) -> go.Figure:
    """Draw one curve as stacked bars: kept efficiency, then each cause of what is lost.

    A part that shrinks with more GPUs (the optimizer's states are spread over more ranks) lies
    below zero: it is won back.

    Args:
        points: what ``scaling()`` returned.

    Raises:
        UsageError: fewer than two sizes.
    """
    if len(points) < 2:
        raise UsageError("A scaling curve needs at least 2 sizes, such as gpus=(8, 16, 32).")
    sizes = [str(point.gpus) for point in points]
    figure = go.Figure(
        go.Bar(
            name="kept",
            x=sizes,
            y=[100 * point.efficiency for point in points],
            marker={"color": _USEFUL, "line": {"width": 0}},
            text=[f"{point.efficiency:.1%}" for point in points],
            textposition="inside",
            insidetextfont={"color": "#ffffff"},
            hovertext=[_hover(point) for point in points],
            hovertemplate="%{hovertext}<extra></extra>",
        )
    )
    for name in _causes(points):
        figure.add_trace(_cause_bars(name, points, sizes))
    last = points[-1]
    dress(
        figure,
        f"{last.efficiency:.1%} efficiency on {last.gpus} GPUs compared with {points[0].gpus}",
        "Tokens per second and GPU relative to the first size; losses by cause",
        barmode="relative",
        height=420,
    )
    figure.update_xaxes(type="category", title="GPUs", showgrid=False)
    return figure.update_yaxes(ticksuffix=" %")


def _causes(points: Sequence[ScalingPoint]) -> list[str]:
    """Names of causes worth a colour, the largest first."""
    largest: dict[str, float] = {}
    for point in points:
        for name, share in point.lost.items():
            largest[name] = max(largest.get(name, 0.0), abs(share))
    return sorted(
        (name for name, share in largest.items() if share > _TRIFLE),
        key=lambda name: -largest[name],
    )


def _cause_bars(name: str, points: Sequence[ScalingPoint], sizes: list[str]) -> go.Bar:
    shares = [point.lost.get(name, 0.0) for point in points]
    won = all(share <= 0 for share in shares)
    label = part_label(name)
    return go.Bar(
        name=f"{label} (less of it)" if won else label,
        x=sizes,
        y=[100 * share for share in shares],
        marker={"color": part_colour(name), "line": {"width": 0}},
        hovertext=[
            f"<b>{size} GPUs</b><br>{label}: {share:+.1%}"
            for size, share in zip(sizes, shares, strict=True)
        ],
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _hover(point: ScalingPoint) -> str:
    step = point.step
    return (
        f"<b>{point.gpus} GPUs</b><br>{point.efficiency:.1%} kept<br>"
        f"{format_count(step.tokens_per_second)} tokens/s, "
        f"{format_seconds(step.step_seconds)} per step"
    )


def efficiency_figure(curves: Mapping[str, Sequence[ScalingPoint]]) -> go.Figure:
    """Draw several curves as lines over the number of GPUs.

    Args:
        curves: label -> what ``scaling()`` returned.

    Raises:
        UsageError: no curve.
    """
    if not curves:
        raise UsageError("No curve to draw. Give at least one with its label.")
    figure = go.Figure()
    for index, (label, points) in enumerate(curves.items()):
        figure.add_trace(
            go.Scatter(
                name=label,
                x=[point.gpus for point in points],
                y=[100 * point.efficiency for point in points],
                mode="lines+markers",
                line={"color": SERIES[index % len(SERIES)], "width": 2.4},
                hovertext=[f"<b>{label}</b><br>{_hover(point)}" for point in points],
                hovertemplate="%{hovertext}<extra></extra>",
            )
        )
    sizes = sorted({point.gpus for points in curves.values() for point in points})
    dress(figure, "Efficiency", "Tokens per second and GPU relative to the first size", height=400)
    figure.update_xaxes(type="log", tickvals=sizes, ticktext=[str(size) for size in sizes])
    figure.update_xaxes(title={"text": "GPUs", "font": {"color": GREY}})
    return figure.update_yaxes(ticksuffix=" %", rangemode="tozero")

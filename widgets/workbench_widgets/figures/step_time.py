"""Figures about time: where a step's seconds go, and how long an all-reduce takes."""

from __future__ import annotations

import math
from collections.abc import Mapping

import plotly.graph_objects as go

from workbench.describe import Cluster, Conditions
from workbench.errors import UsageError
from workbench.estimate.network import links
from workbench.estimate.timing import StepTime
from workbench.units import format_bytes, format_seconds
from workbench_widgets.figures.theme import GREY, SERIES, dress, ink, part_colour, part_label

_ROW, _FRAME = 38, 210  # pixels: one bar; title, axis and legend
_SIZES = tuple(2.0**power for power in range(10, 36))  # 1 KiB to 32 GiB
_LEAST_TEXT = 0.05  # share of the longest bar that has room for its percentage


def step_figure(steps: Mapping[str, StepTime]) -> go.Figure:
    """Draw where each step's time goes: one bar per step, one colour per part, its range beside it.

    Args:
        steps: label -> step time, drawn from top to bottom.

    Raises:
        UsageError: nothing to draw.
    """
    if not steps:
        raise UsageError("No step to draw. Give at least one step time with its label.")
    longest = max(step.step_seconds for step in steps.values())
    unit, scale = _unit(longest)
    figure = go.Figure()
    for name in list(dict.fromkeys(name for step in steps.values() for name in step.parts)):
        figure.add_trace(_part_bars(name, steps, scale, longest))
    figure.add_trace(_totals(steps, scale, unit))
    dress(
        figure,
        "Where a step's time goes",
        "Estimate of one optimizer step by part; each bar is labelled with total and range",
        barmode="stack",
        height=_FRAME + _ROW * len(steps),
        margin_b=112,
        legend_traceorder="normal",
    )
    figure.update_xaxes(ticksuffix=f" {unit}", range=[0, 1.4 * longest * scale])
    figure.update_yaxes(categoryorder="array", categoryarray=list(reversed(list(steps))))
    return figure.update_yaxes(showgrid=False, ticklabelstandoff=6)


def _part_bars(name: str, steps: Mapping[str, StepTime], scale: float, longest: float) -> go.Bar:
    seconds = [step.parts.get(name, 0.0) for step in steps.values()]
    shares = [part / step.step_seconds for part, step in zip(seconds, steps.values(), strict=True)]
    return go.Bar(
        orientation="h",
        name=part_label(name),
        y=list(steps),
        x=[part * scale for part in seconds],
        marker={"color": part_colour(name), "line": {"width": 0}},
        text=[
            f"{share:.0%}" if part > _LEAST_TEXT * longest else ""
            for part, share in zip(seconds, shares, strict=True)
        ],
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        insidetextfont={"color": ink(part_colour(name))},
        hovertext=[
            f"<b>{label}</b><br>{part_label(name)}: {format_seconds(part)}, {share:.1%}"
            for label, part, share in zip(steps, seconds, shares, strict=True)
        ],
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _totals(steps: Mapping[str, StepTime], scale: float, unit: str) -> go.Scatter:
    """Each bar's total with its range, as text beside the bar."""
    ends = [step.step_seconds * scale for step in steps.values()]
    digits = max(0, 2 - math.floor(math.log10(max(ends))))
    return go.Scatter(
        mode="text",
        showlegend=False,
        y=list(steps),
        x=ends,
        text=[
            f" {end:.{digits}f} {unit} "
            f"({end * step.low:.{digits}f} to {end * step.high:.{digits}f})"
            for end, step in zip(ends, steps.values(), strict=True)
        ],
        textposition="middle right",
        textfont={"color": GREY, "size": 12},
        hoverinfo="skip",
        cliponaxis=False,
    )


def all_reduce_figure(
    clusters: Mapping[str, Cluster],
    *,
    mark_bytes: float | None = None,
    conditions: Conditions | None = None,
) -> go.Figure:
    """Draw how long one all-reduce over all GPUs of each cluster takes, by size of the message.

    Args:
        clusters: label -> cluster of a kind in the catalog, at least 2 GPUs.
        mark_bytes: a size to mark with a line, such as that of the gradients.
        conditions: what was measured; None = usual shares of the links' rates.

    Raises:
        UsageError: a cluster of one GPU, or one whose accelerator is not in the catalog.
    """
    figure = go.Figure()
    for index, (label, cluster) in enumerate(clusters.items()):
        if cluster.accelerator is None or cluster.world_size < 2:
            raise UsageError(f"{label}: an all-reduce needs 2 or more GPUs of the catalog.")
        network = links(cluster, conditions or Conditions())
        group = network.group(cluster.world_size, 1)
        seconds = [network.reduce_seconds(size, group) for size in _SIZES]
        figure.add_trace(
            go.Scatter(
                name=label,
                x=_SIZES,
                y=seconds,
                line={"color": SERIES[index % len(SERIES)], "width": 2.4},
                hovertext=[
                    f"<b>{label}</b><br>{format_bytes(size)} in {format_seconds(took)}"
                    for size, took in zip(_SIZES, seconds, strict=True)
                ],
                hovertemplate="%{hovertext}<extra></extra>",
            )
        )
    title = "Kilobytes take microseconds, gradients take longer"
    dress(figure, title, "One all-reduce, without overlap with compute", height=420)
    sizes = [2.0**power for power in range(10, 36, 5)]
    figure.update_xaxes(type="log", tickvals=sizes, ticktext=[format_bytes(size) for size in sizes])
    times = [10.0**power for power in range(-5, 3)]
    figure.update_yaxes(
        type="log", tickvals=times, ticktext=[format_seconds(time) for time in times]
    )
    if mark_bytes is not None:
        figure.add_vline(x=mark_bytes, line={"color": GREY, "dash": "dot", "width": 1.5})
        figure.add_annotation(
            text=format_bytes(mark_bytes),
            x=math.log10(mark_bytes),
            y=1,
            yref="paper",
            xanchor="right",
            showarrow=False,
        )
    return figure


def _unit(seconds: float) -> tuple[str, float]:
    for unit, scale in (("h", 1 / 3600), ("min", 1 / 60), ("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 1:
            return unit, scale
    return "µs", 1e6

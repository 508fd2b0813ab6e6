"""A pipeline's step as a Gantt chart: one row per rank, one bar per pass, idle time left blank."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from workbench.errors import UsageError
from workbench.estimate.pipeline import PipelineRun, ScheduledPass
from workbench.units import format_count, format_seconds
from workbench_widgets.figures.theme import dress

_MOST_BARS = 20_000  # beyond it the browser takes seconds to draw
_MOST_NUMBERED = 3_000  # bars that carry their micro-batch's number
_ROW, _FRAME = 34, 120  # pixels: one rank; title, legend and axis
_COLOURS = {"F": "#1668c7", "B": "#b4540a", "W": "#1a7f5a"}  # those of the faces' first series
_DARK_INK = "#10151b"
_PALEST = 0.55  # how far the last chunk's colour goes towards white


def pipeline_figure(run: PipelineRun) -> go.Figure:
    """Draw one simulated step; readable on light and on dark pages.

    Later chunks of a rank (interleaved) are paler. Numbers in the bars are micro-batches, from 0,
    and appear where they fit: zooming in shows more of them.

    Args:
        run: what ``simulate_pipeline`` returned.

    Raises:
        UsageError: more passes than a browser can draw.
    """
    passes = [block for rank in run.ranks for block in rank]
    if len(passes) > _MOST_BARS:
        raise UsageError(
            f"{len(passes):,} passes are too many to draw; the maximum is {_MOST_BARS:,}. Simulate "
            "fewer micro-batches: the pattern repeats."
        )
    unit, scale = _unit(run.total_seconds)
    figure = go.Figure()
    for kind in "FBW":
        # The legend shows a trace's first bar: the first chunk's full colour.
        mine = sorted(
            (block for block in passes if block.kind == kind), key=lambda block: block.chunk
        )
        if mine:
            figure.add_trace(_bars(run, kind, mine, scale, numbered=len(passes) <= _MOST_NUMBERED))
    _lay_out(figure, run, unit, scale)
    return figure


def _bars(
    run: PipelineRun, kind: str, passes: Sequence[ScheduledPass], scale: float, *, numbered: bool
) -> go.Bar:
    chunks = run.schedule.virtual_stages
    colours = [_shade(_COLOURS[kind], block.chunk, chunks) for block in passes]
    return go.Bar(
        orientation="h",
        name=_name(run, kind),
        y=[f"rank {block.rank}" for block in passes],
        x=[block.seconds * scale for block in passes],
        base=[block.start_seconds * scale for block in passes],
        width=0.82,
        marker={
            "color": [f"rgb{colour}" for colour in colours],
            "line": {"color": "rgba(255, 255, 255, 0.55)", "width": 0.6},
        },
        text=[str(block.micro_batch) for block in passes] if numbered else None,
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        insidetextfont={"color": [_ink(colour) for colour in colours], "size": 12},
        hovertext=[_hover(run, block) for block in passes],
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _name(run: PipelineRun, kind: str) -> str:
    if kind == "B" and run.schedule.splits_backward:
        return "backward, inputs"
    return {"F": "forward", "B": "backward", "W": "backward, weights"}[kind]


def _hover(run: PipelineRun, placed: ScheduledPass) -> str:
    chunk = f", chunk {placed.chunk}" if run.schedule.virtual_stages > 1 else ""
    return (
        f"<b>{_name(run, placed.kind)} of micro-batch {placed.micro_batch}</b><br>"
        f"rank {placed.rank}{chunk}<br>{format_seconds(placed.start_seconds)} to "
        f"{format_seconds(placed.end_seconds)}, takes {format_seconds(placed.seconds)}"
    )


def _lay_out(figure: go.Figure, run: PipelineRun, unit: str, scale: float) -> None:
    title, below = _titles(run)
    dress(
        figure,
        title,
        below,
        barmode="overlay",
        bargap=0,
        height=_FRAME + _ROW * len(run.ranks),
        margin={"l": 64, "r": 16, "t": 62, "b": 58},
        uniformtext={"minsize": 8, "mode": "hide"},
    )
    end = run.total_seconds * scale
    figure.update_xaxes(range=[0, end * 1.004 or 1], ticksuffix=f" {unit}", nticks=9)
    rows = [f"rank {rank}" for rank in reversed(range(len(run.ranks)))]
    figure.update_yaxes(
        showgrid=False,
        categoryorder="array",
        categoryarray=rows,
        fixedrange=True,
        ticklabelstandoff=6,
    )


def _titles(run: PipelineRun) -> tuple[str, str]:
    plan = run.schedule
    chunks = (
        f" x {plan.virtual_stages} chunks (later chunks are paler)"
        if plan.virtual_stages > 1
        else ""
    )
    title = (
        f"{plan.name}: {run.bubble_of_wall:.1%} of {format_seconds(run.total_seconds)} is bubble"
    )
    most = max(run.peak_in_flight)
    moved = f"; {format_seconds(run.transfer_seconds)} per transfer" * bool(run.transfer_seconds)
    below = (
        f"{plan.stages} ranks{chunks}, {format_count(plan.micro_batches)} micro-batches, "
        f"at most {most:.3g} in flight on one rank{moved}"
    )
    return title, below


def _unit(seconds: float) -> tuple[str, float]:
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 1:
            return unit, scale
    return "µs", 1e6


def _shade(colour: str, chunk: int, chunks: int) -> tuple[int, int, int]:
    """The kind's colour, paler for later chunks."""
    pale = _PALEST * chunk / (chunks - 1) if chunks > 1 else 0.0
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return (
        round(red + (255 - red) * pale),
        round(green + (255 - green) * pale),
        round(blue + (255 - blue) * pale),
    )


def _ink(colour: tuple[int, int, int]) -> str:
    """White or near-black, whichever stands out more (WCAG relative luminance)."""
    linear = [
        part / 255 / 12.92 if part < 11 else ((part / 255 + 0.055) / 1.055) ** 2.4
        for part in colour
    ]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#ffffff" if luminance < 0.19 else _DARK_INK

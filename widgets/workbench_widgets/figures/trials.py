"""Figures of studies: what each value of one number brings, and what fewer bytes cost."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from workbench.compare.studies.compression import Compression
from workbench.compare.studies.trial import TrialResult
from workbench.compare.studies.tuning import Tuning
from workbench.errors import UsageError
from workbench.units import format_bytes, format_count, format_seconds
from workbench_widgets.figures.theme import GREY, SERIES, dress, ink

_CHOSEN, _OTHER = "#1a7f5a", "#1668c7"
_LOSS_TOLERANCE = 0.02
"""Share of the uncompressed loss by which another may differ and still be called the same."""
_NAMES = {"batch-size": "Micro-batch", "accumulate": "Accumulation", "workers": "Loader workers"}


def tuning_figure(tuning: Tuning) -> go.Figure:
    """Draw the rate of every value as a bar, the one to take in green, what failed as a cross.

    Args:
        tuning: what ``batch_size`` or ``sweep`` returned.

    Raises:
        UsageError: no value could be measured.
    """
    if all(rate is None for rate in tuning.rates):
        raise UsageError(f"{tuning.study}: no value could be measured. {tuning.why}.")
    unit = "steps/s" if tuning.kind == "workers" else "samples/s"
    pairs = list(zip(tuning.results, tuning.rates, strict=True))
    good = [(result, rate) for result, rate in pairs if rate is not None]
    colours = [_CHOSEN if result.value == tuning.best else _OTHER for result, _ in good]
    figure = go.Figure(
        go.Bar(
            x=[str(result.value) for result, _ in good],
            y=[rate for _, rate in good],
            marker={"color": colours, "line": {"width": 0}},
            text=[f"{rate:.3g}" for _, rate in good],
            textposition="inside",
            insidetextfont={"color": [ink(colour) for colour in colours]},
            hovertext=[_hover(result, f"{rate:.4g} {unit}") for result, rate in good],
            hovertemplate="%{hovertext}<extra></extra>",
        )
    )
    failed = [result for result, rate in pairs if rate is None]
    if failed:
        figure.add_trace(
            go.Scatter(
                x=[str(result.value) for result in failed],
                y=[0.0] * len(failed),
                mode="markers+text",
                marker={"symbol": "x", "size": 11, "color": "#c9402b"},
                text=[result.outcome for result in failed],
                textposition="top center",
                hovertext=[f"<b>{result.label}</b><br>{result.problem}" for result in failed],
                hovertemplate="%{hovertext}<extra></extra>",
                cliponaxis=False,
            )
        )
    name = _NAMES.get(tuning.kind, tuning.kind)
    title = f"{name}: take {tuning.best}"
    below = f"{unit}; {tuning.why.partition(';')[0]}"
    dress(figure, title, below, showlegend=False, height=380)
    order = [str(result.value) for result in tuning.results]
    figure.update_xaxes(type="category", categoryarray=order, title=name, showgrid=False)
    return figure.update_yaxes(title=unit, rangemode="tozero")


def compression_figure(compression: Compression) -> go.Figure:
    """Draw the trade: bytes sent per step (logarithmic) against the loss after the same steps.

    Lower is better and so is further left; dotted lines cross at the uncompressed run.

    Args:
        compression: what ``compression`` returned.

    Raises:
        UsageError: no variant reported both its bytes and its loss.
    """
    results = [
        result
        for result in compression.results
        if result.good and result.loss is not None and result.sent_bytes
    ]
    if not results:
        why = "; ".join(
            f"{result.label}: {result.problem}" for result in compression.results if result.problem
        )
        raise UsageError(
            f"{compression.study}: no variant reported both its bytes and its loss. {why}"
        )
    figure = go.Figure()
    for index, result in enumerate(results):
        figure.add_trace(
            go.Scatter(
                name=str(result.value),
                x=[result.sent_bytes],
                y=[result.loss],
                mode="markers",
                marker={"size": 13, "color": SERIES[index % len(SERIES)], "symbol": index},
                hovertext=[
                    _hover(result, f"{format_bytes(result.sent_bytes)} sent per step and rank")
                ],
                hovertemplate="%{hovertext}<extra></extra>",
            )
        )
    plain = compression.plain
    if plain in results and plain is not None:
        figure.add_hline(y=plain.loss, line={"dash": "dot", "color": GREY, "width": 1})
        figure.add_vline(x=plain.sent_bytes, line={"dash": "dot", "color": GREY, "width": 1})
    dress(
        figure, _trade(results, plain), "Loss against gradient bytes sent by one rank", height=400
    )
    figure.update_xaxes(
        type="log", title="sent per step", exponentformat="SI", ticksuffix="B", dtick=1
    )
    return figure.update_yaxes(title="loss")


def _trade(results: Sequence[TrialResult], plain: TrialResult | None) -> str:
    """What sends least at the same loss."""
    if plain is None or plain.loss is None or not plain.sent_bytes:
        return "Trade-off of fewer bytes"
    comparable = [
        result for result in results if (result.loss or 0) <= (1 + _LOSS_TOLERANCE) * plain.loss
    ]
    least = min(comparable, key=lambda result: result.sent_bytes or 0)
    if least is plain:
        return f"Fewer bytes cost more than {_LOSS_TOLERANCE:.0%} of the loss, after these steps"
    share = (least.sent_bytes or 0) / plain.sent_bytes
    return f"{least.value}: {share:.1%} of the bytes, loss {(least.loss or 0) - plain.loss:+.3f}"


def _hover(result: TrialResult, first: str) -> str:
    lines = [f"<b>{result.label}</b>", first, f"{format_seconds(result.step_seconds)} per step"]
    if result.tokens_per_second:
        lines.append(f"{format_count(result.tokens_per_second)} tokens/s")
    if result.loss is not None:
        lines.append(f"loss {result.loss:.3f}")
    if result.peak_memory_bytes:
        lines.append(f"{format_bytes(result.peak_memory_bytes)} at most")
    return "<br>".join(lines)

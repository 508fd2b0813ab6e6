"""A sweep's figures: best so far, parallel coordinates, importance, looks.

They are Optuna's own, drawn by the installed plotly, in colours that suit light and dark pages.
"""
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false

from __future__ import annotations

import importlib.util
from typing import Any

from workbench.errors import HostError, pip_install
from workbench.sweeping.progress import TrialRow, best_of
from workbench.sweeping.study import optuna
from workbench.sweeping.sweep import Sweep

_GREY, _LINE = "#797f87", "rgba(121, 127, 135, 0.28)"
_BEST, _OTHER, _WORST = "#1a7f5a", "#1668c7", "#b4540a"
_FEW_TRIALS = 12  # more have whole numbers on their axis by themselves


def figures(sweep: Sweep) -> dict[str, Any]:
    """Title -> `plotly.graph_objects.Figure`; importance needs two finished trials that differ.

    Raises:
        HostError: Optuna or plotly is not installed.
    """
    drawn = optuna().visualization
    if importlib.util.find_spec("plotly") is None:
        raise HostError(f"The figures need plotly: {pip_install('training-workbench[lab]')}")
    study, plan, trials = sweep.study(), sweep.plan, sweep.trials()
    finished = [trial for trial in trials if trial.state == "finished"]
    named_figures: dict[str, Any] = {}
    if finished:
        history = drawn.plot_optimization_history(study, target_name=plan.metric)
        named_figures["Best so far"] = _history(history, plan.metric)
        coordinates = drawn.plot_parallel_coordinate(study, target_name=plan.metric)
        named_figures["Parallel coordinates"] = _coordinates(coordinates, plan.direction)
    if len({tuple(row.values.items()) for row in finished}) > 1:
        importance = drawn.plot_param_importances(study, target_name=plan.metric)
        named_figures["Importance"] = _importance(importance, plan.metric)
    if sweep.plan.first_look is not None and trials:
        looks = drawn.plot_intermediate_values(study)
        named_figures["Looks"] = _looks(looks, trials, best_of(trials, plan.direction), plan.metric)
    for figure in named_figures.values():
        _dress(figure)
    return named_figures


def plotly_script() -> str:
    """The installed plotly's JavaScript, which draws the figures on a page."""
    from plotly.offline import get_plotlyjs  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs]  (an extra)

    return get_plotlyjs()


def _dress(figure: Any) -> None:
    """No background of its own; the heading above the figure says what it is."""
    figure.update_layout(
        template=None,
        title=None,
        paper_bgcolor="rgba(0, 0, 0, 0)",
        plot_bgcolor="rgba(0, 0, 0, 0)",
        font={"color": _GREY, "size": 12},
        margin={"l": 64, "r": 24, "t": 28, "b": 48},
    )
    if figure.layout.annotations:
        figure.update_layout(margin={"l": 24, "r": 8, "b": 16})
    axis = {"gridcolor": _LINE, "linecolor": _LINE, "zeroline": False, "automargin": True}
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis)


def _history(figure: Any, metric: str) -> Any:
    values, best, *_ = figure.data
    values.update(name=metric, marker={"color": _OTHER, "size": 8})
    best.update(name="best so far", line={"color": _BEST, "width": 2, "shape": "hv"})
    figure.data = (values, best)
    figure.update_layout(legend={"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"})
    if len(values.x or ()) <= _FEW_TRIALS:
        figure.update_xaxes(tick0=0, dtick=1)  # there is no trial 0.5
    return figure.update_yaxes(title=metric)


def _coordinates(figure: Any, direction: str) -> Any:
    """The better a trial, the greener its line; the scale beside it says so."""
    scale: list[tuple[float, str]] = [(0.0, _BEST), (0.5, _OTHER), (1.0, _WORST)]
    if direction == "higher":
        scale = [(1.0 - at, colour) for at, colour in reversed(scale)]
    for trace in figure.data:
        if trace.mode == "lines":  # its first y is the place of the metric, from 0 to 1
            trace.update(line={"color": _between(scale, trace.y[0]), "width": 1.8}, opacity=0.85)
        else:
            trace.marker.update(colorscale=scale, reversescale=False)
            trace.marker.colorbar.update(thickness=10, outlinewidth=0, title=None)
    figure.update_annotations(font={"color": _GREY, "size": 11})
    figure.update_shapes(line={"color": _GREY})
    return figure.update_yaxes(visible=False).update_xaxes(side="top")


def _between(scale: list[tuple[float, str]], share: float) -> str:
    """The colour at a share of a scale of three."""
    low, high = (scale[0][1], scale[1][1]) if share < 0.5 else (scale[1][1], scale[2][1])
    part = 2 * share if share < 0.5 else 2 * share - 1
    ends = [[int(colour[at : at + 2], 16) for at in (1, 3, 5)] for colour in (low, high)]
    mixed = [round(first + part * (second - first)) for first, second in zip(*ends, strict=True)]
    return f"rgb({mixed[0]}, {mixed[1]}, {mixed[2]})"


def _importance(figure: Any, metric: str) -> Any:
    bars = figure.data[0]
    bars.update(marker={"color": _OTHER}, width=0.6)
    title = f"Part of the differences in {metric} that a parameter explains"
    figure.update_xaxes(title=title, range=[0, 1.08])
    return figure.update_yaxes(title=None)


def _looks(figure: Any, trials: list[TrialRow], best: TrialRow | None, metric: str) -> Any:
    """The best in green, other finished ones in blue, pruned ones in grey."""
    states = {trial.number: trial for trial in trials}
    for curve in figure.data:
        trial = states.get(int(str(curve.name).removeprefix("Trial")))
        if trial is None:
            continue
        colour = _GREY if trial.state in {"pruned", "failed"} else _OTHER
        is_best = best is not None and trial.number == best.number
        curve.update(
            name=f"trial {trial.number}, {'best' if is_best else trial.state}",
            mode="lines+markers",
            line={"color": _BEST if is_best else colour, "width": 2.6 if is_best else 1.2},
            marker={"size": 6, "symbol": "x" if trial.state == "pruned" else "circle"},
        )
    return figure.update_yaxes(title=metric).update_xaxes(title="Step")

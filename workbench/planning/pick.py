"""One strategy by goal for a workload whose batch is given: what fits, is fast, or is cheap.

The planner decides micro-batch and machines too; here both are given, as in a launch form, and only
the layouts are the planner's (`enumerate_layouts`). They have different global batches then, so
they are compared by tokens per second, not by step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from workbench.describe import Cluster, Strategy, Workload
from workbench.describe.checks import require_choice, require_positive
from workbench.describe.strategy import NAMES
from workbench.errors import UsageError
from workbench.estimate.memory import training_memory
from workbench.estimate.step_time import step_time
from workbench.planning.layouts import enumerate_layouts
from workbench.planning.space import Space
from workbench.units import format_bytes, format_count

GOALS = ("fit", "fast", "cheap")
_ALIKE = 0.02
"""Estimated speeds this close are the same: the simpler layout is taken."""
_SAME_NEEDS = 1.05
"""So are needs: a small model is no reason to split it."""
_LISTED = 4
"""Other layouts that the reasons name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyPick:
    """The strategy for a goal, and what it was compared with."""

    strategy: Strategy
    """Complete, with its options."""
    why: tuple[str, ...]
    """The chosen layout's figures, then those of others, each in one line."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """One layout and its figures."""

    strategy: Strategy
    order: int
    """Position by simplicity."""
    extra: int
    """0 plain, 1 with recompute, 2 with states in host memory too."""
    needs_bytes: int
    """One rank on its card; on CPU one process."""
    has_bytes: int | None
    """The card; on CPU the rank's share of the host. None when unknown."""
    fits: bool
    """Whether it fits; where the memory is unknown nothing speaks against it."""
    tokens_per_second: float | None
    """All ranks; None where the machine's speed is unknown."""

    @property
    def ranks(self) -> int:
        return self.strategy.world_size


def pick(
    goal: str,
    workload: Workload,
    cluster: Cluster,
    processes: int,
    *,
    allowed: Callable[[Strategy], str] | None = None,
) -> StrategyPick:
    """The strategy that serves `goal` with up to `processes` ranks of one machine.

    Args:
        goal: ``fit``: least memory per rank, without recompute and offload as long as it fits
            without; ``fast``: most tokens per second of what fits; ``cheap``: least GPU time per
            token of what fits, on fewer ranks where that is less.
        workload: What is trained, with its micro-batch and accumulation.
        cluster: The machine; one without GPUs means CPU ranks, whose speed is unknown: simpler
            layouts then count as faster.
        processes: Ranks; ``cheap`` may take fewer.
        allowed: Why a layout cannot be launched; empty = it can. Asked of the best ones only.

    Raises:
        UsageError: nothing fits, or nothing that fits is allowed.
    """
    require_choice("goal", goal, GOALS)
    require_positive("processes", processes)
    counts = _counts(processes) if goal == "cheap" else [processes]
    layouts = [layout for count in counts for layout in _layouts(workload, cluster, count)]
    fitting = sorted((layout for layout in layouts if layout.fits), key=_key(goal, layouts))
    refused: list[str] = []
    for layout in fitting:
        reason = allowed(layout.strategy) if allowed else ""
        if not reason:
            return StrategyPick(
                strategy=layout.strategy,
                why=_why(goal, layout, layouts, refused),
            )
        refused.append(f"{_called(layout)}: {reason}")
    raise UsageError(_nothing(layouts, cluster, refused))


def _counts(processes: int) -> list[int]:
    """Powers of two below, and the number itself."""
    return [2**power for power in range(processes.bit_length()) if 2**power < processes] + [
        processes
    ]


def _layouts(workload: Workload, cluster: Cluster, ranks: int) -> Iterator[_Layout]:
    """Every layout of the planner's over so many ranks; a stage wants a micro-batch of its own."""
    space = Space(recompute=("none", "full"), offload=bool(cluster.gpus))
    batch = ranks * workload.micro_batch * workload.accumulate
    layouts = enumerate_layouts(workload, nodes=1, per_node=ranks, batch=batch, space=space)
    for order, layout in enumerate(layouts):
        if layout.strategy.pp <= workload.accumulate:
            for choice in layout.choices:
                yield _weighed(workload, choice.strategy, cluster, order)


def _weighed(workload: Workload, strategy: Strategy, cluster: Cluster, order: int) -> _Layout:
    estimate = training_memory(workload, strategy, cluster if cluster.gpus else "cpu")
    speed = None
    if cluster.accelerator is not None and strategy.world_size <= cluster.world_size:
        speed = step_time(workload, strategy, cluster).tokens_per_second
    if cluster.gpus:
        has, needs = estimate.card_bytes, estimate.on_card_bytes
        on_host, host = estimate.host_bytes, cluster.memory_bytes
        fits = estimate.fits is not False and not (on_host and host and on_host > host)
    else:
        share = cluster.memory_bytes and cluster.memory_bytes // strategy.world_size
        has, needs = share, estimate.total_bytes
        fits = has is None or needs <= has
    extra = 2 if strategy.offload else int(strategy.recompute != "none")
    return _Layout(strategy, order, extra, needs, has, fits, speed)


def _key(goal: str, layouts: list[_Layout]) -> Callable[[_Layout], tuple[float, ...]]:
    """What is best comes first."""
    rates = [_rate(goal, layout) for layout in layouts if layout.fits]
    best = max((rate for rate in rates if rate is not None), default=None)

    least = {
        extra: min(
            (layout.needs_bytes for layout in layouts if layout.fits and layout.extra == extra),
            default=0,
        )
        for extra in range(3)
    }

    def fit(layout: _Layout) -> tuple[float, ...]:
        over = layout.needs_bytes / max(1, least[layout.extra])
        return (layout.extra, 0.0 if over <= _SAME_NEEDS else over, layout.order)

    def other(layout: _Layout) -> tuple[float, ...]:
        rate = _rate(goal, layout)
        if best is None or rate is None:  # fewer ranks are less to pay for, simpler is quicker
            return (math.inf, layout.ranks if goal == "cheap" else 0, layout.extra, layout.order)
        slowdown = max(0.0, 1 - rate / best)
        return (0.0 if slowdown <= _ALIKE else slowdown, layout.extra, layout.ranks, layout.order)

    return fit if goal == "fit" else other


def _rate(goal: str, layout: _Layout) -> float | None:
    """Tokens per second of all ranks, for ``cheap`` of one."""
    if layout.tokens_per_second is None:
        return None
    return layout.tokens_per_second / layout.ranks if goal == "cheap" else layout.tokens_per_second


def _called(layout: _Layout) -> str:
    with_ = (
        [f"recompute {layout.strategy.recompute}"] if layout.strategy.recompute != "none" else []
    )
    with_ += [f"offload {','.join(layout.strategy.offload)}"] if layout.strategy.offload else []
    name = layout.strategy.name
    if name in NAMES and name != "single":  # degrees say the number of ranks themselves
        name = f"{name} on {layout.ranks}"
    return f"{name} with {' and '.join(with_)}" if with_ else name


def _figures(layout: _Layout) -> str:
    has = f" of {format_bytes(layout.has_bytes)}" if layout.has_bytes is not None else ""
    speed = layout.tokens_per_second
    rate = f", about {format_count(speed)} tokens/s" if speed is not None else ""
    return f"{format_bytes(layout.needs_bytes)}{has} a rank{rate}"


def _why(goal: str, chosen: _Layout, layouts: list[_Layout], refused: list[str]) -> tuple[str, ...]:
    fitting = [layout for layout in layouts if layout.fits]
    best = {
        "fit": f"within {_SAME_NEEDS - 1:.0%} of the least memory",
        "fast": "the fastest" if chosen.tokens_per_second else "the simplest",
        "cheap": "the least GPU time" if chosen.tokens_per_second else "the fewest ranks",
    }[goal]
    if goal == "fit" and chosen.extra == 0:
        best += " without recompute or offload"
    of = f"{best} of {len(fitting)} layouts that fit" if len(fitting) > 1 else "the only one to fit"
    lines = [f"{_called(chosen)}: {_figures(chosen)}; {of}."]
    comparisons = _comparisons(goal, chosen, layouts)
    lines += [
        f"{_called(layout)}: {_figures(layout)}{'' if layout.fits else ': out'}."
        for layout in comparisons
    ]
    return (*lines, *refused[:2])


def _comparisons(goal: str, chosen: _Layout, layouts: list[_Layout]) -> list[_Layout]:
    """The plain ones that everybody asks for, then the next best."""
    ranked = sorted((layout for layout in layouts if layout.fits), key=_key(goal, layouts))
    usual = [
        layout
        for layout in layouts
        if layout.strategy.name in {"ddp", "fsdp"} and layout.extra == 0
    ]
    ahead = [layout for layout in usual if layout.ranks == chosen.ranks or not layout.fits]
    listed: list[_Layout] = []
    for layout in (*ahead, *ranked):
        if layout is not chosen and layout not in listed:
            listed.append(layout)
    return listed[:_LISTED]


def _nothing(layouts: list[_Layout], cluster: Cluster, refused: list[str]) -> str:
    if refused:
        return f"Nothing that fits can be launched. {refused[0]}"
    if not layouts:
        return "No layout divides this model over so many ranks. Choose another number of them."
    least = min(layouts, key=lambda layout: layout.needs_bytes)
    where = "GPUs" if cluster.gpus else "memory"
    return (
        f"No layout fits: the least, {_called(least)}, needs {_figures(least)}. "
        f"Use more {where}, shorter sequences, a smaller micro-batch or a smaller model."
    )

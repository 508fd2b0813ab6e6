"""What the same work would keep on rented GPUs: the catalog's estimate, held to a measurement.

A measurement on CPU says nothing about a GPU's rate, so then it is the estimate alone. Measured on
GPUs of the same kind, the estimate is scaled to what they did, and only its growth is taken over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workbench.compare.scaling_study import ScalingStudy
from workbench.compare.studies.bench import Bench
from workbench.compare.studies.scaling_curves import CurvePoint
from workbench.compare.studies.trial import Trial
from workbench.describe import Cluster, Workload
from workbench.describe.detection import detect_host
from workbench.describe.strategy import Strategy
from workbench.errors import UsageError
from workbench.estimate.scaling import ScalingPoint, scaling


@dataclass(frozen=True, slots=True, kw_only=True)
class RentedPoint:
    """One size of a rented cluster."""

    gpus: int
    """In all."""
    step_seconds: float
    """Estimated."""
    low_seconds: float
    """Lower end of the estimate's range."""
    high_seconds: float
    """Upper end."""
    efficiency: float
    """Tokens per second and GPU over one GPU's."""
    measured_ratio: float | None
    """Measured over estimated on this host's GPUs of the same kind, with which the estimate was
    multiplied; None = nothing of this host went into it."""


def rented(
    study: ScalingStudy, bench: Bench, gpu: str, sizes: Sequence[int]
) -> tuple[RentedPoint, ...]:
    """Weak scaling of the study's work on nodes of 8 of these GPUs (smaller sizes: one node).

    Raises:
        UsageError: a script, whose work is not known; a strategy that does more than replicate or
            shard; a size that is not a whole number of nodes.
        UnknownNameError: no such GPU in the catalog.
    """
    checked = bench.request(Trial(label="", processes=1, arguments=bench.arguments))
    if checked.workload is None:
        raise UsageError(
            f"The model of {study.target} is unknown, so the catalog cannot estimate it on other "
            "GPUs. Use a recipe, or run workbench scale on the rented machine."
        )
    cluster, strategy = Cluster.rented(gpu, 8), _growing(bench)
    points = scaling(checked.workload, strategy, cluster, gpus=sorted({1, *sizes}), mode="weak")
    ratio = _ratio(study, checked.workload, strategy, cluster)
    return tuple(_point(point, ratio) for point in points if point.gpus in sizes)


def _growing(bench: Bench) -> Strategy:
    """The study's strategy of two ranks, of which there can be any number."""
    strategy = bench.strategy(2)
    if 2 not in {strategy.dp_replicate, strategy.dp_shard}:
        raise UsageError(
            "Other GPUs are estimated for strategies of any number of ranks, not "
            f"{strategy.name!r}. Use ddp, fsdp or zero1 to zero3, or workbench plan."
        )
    return strategy


def _ratio(
    study: ScalingStudy, workload: Workload, strategy: Strategy, cluster: Cluster
) -> float | None:
    here = detect_host()
    same = here.accelerator is not None and here.accelerator == cluster.accelerator
    measured = _largest(study)
    if study.device != "cuda" or not same or measured is None:
        return None
    sizes = sorted({1, measured.ranks})
    there = scaling(workload, strategy, here, gpus=sizes)[-1]
    return measured.step_seconds / there.step.step_seconds


def _largest(study: ScalingStudy) -> CurvePoint | None:
    curves = [curve for curve in study.curves if curve.mode == "weak"]
    return [point for point in curves[0].points if point.measured][-1] if curves else None


def _point(point: ScalingPoint, ratio: float | None) -> RentedPoint:
    step = point.step.step_seconds * (ratio or 1.0)
    return RentedPoint(
        gpus=point.gpus,
        step_seconds=step,
        low_seconds=step * point.step.low,
        high_seconds=step * point.step.high,
        efficiency=point.efficiency,
        measured_ratio=ratio,
    )

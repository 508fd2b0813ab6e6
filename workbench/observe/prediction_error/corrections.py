"""What finished runs say about the predictions of their host: kept, and used for the next ones."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

from workbench.observe.prediction_error.terms import OTHER_PROCESSES, PEAK, STEP, PredictionError
from workbench.observe.summary import (
    CALIBRATION,
    calibration_factor,
    predicted_memory,
    predicted_time,
)
from workbench.store.files import read_json, write_json_atomic
from workbench.store.findings import Finding
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord

STEPS, BYTES = "step_seconds", "peak_bytes"
FEWEST_STEPS = 20
"""Steady steps below which a run says nothing about its host."""
FEWEST_RUNS, NEWEST_RUNS = 3, 20
NARROWEST = 0.05
"""Runs repeat no better than this: the range is at least so wide on either side."""
_SANE = (0.1, 10.0)  # beyond, something else continued
_TROUBLES = frozenset(
    {"straggler", "input-bound", "slow-down", "thermal-throttling", "power-throttling"}
    | {"slow-clock", "swap", "hang", "world-size"}
)
"""Findings of a run that then measured its trouble and not its host."""
_SHAPE = ("seq_len", "micro_batch", "accumulate", "precision")


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Measured ÷ predicted of earlier runs on this host."""

    factor: float
    """Their median."""
    low: float
    """The lowest of them; from ten runs on the first decile."""
    high: float
    """The highest of them, or the last decile."""
    runs: int
    """How many they are."""

    def __str__(self) -> str:
        spread = f"{self.low:.2f} to {self.high:.2f}"
        return f"corrected by {self.factor:.2f}, the median of {self.runs} runs here ({spread})"

    @classmethod
    def read(cls, document: Mapping[str, Any] | None) -> Correction | None:
        """Of a kept document; None where there is none, or not all of it."""
        names = [field.name for field in fields(cls)]
        if document is None or any(document.get(name) is None for name in names):
            return None
        return cls(**{name: document[name] for name in names})

    def range(self) -> tuple[float, float]:
        """Both ends of the spread as factors of the corrected prediction."""
        low, high = self.low / self.factor, self.high / self.factor
        return min(low, 1 - NARROWEST), max(high, 1 + NARROWEST)


def kind_of(strategy: str) -> str:
    """A strategy's name without its degrees.

    >>> kind_of("ddp"), kind_of("zero2"), kind_of("dp2-tp4"), kind_of("fsdp4-tp2")
    ('ddp', 'zero2', 'dp-tp', 'fsdp-tp')
    """
    return re.sub(r"(?<=[a-z])\d+(?=-|$)", "", strategy) if "-" in strategy else strategy


def correction(
    lines: Iterable[Mapping[str, Any]], *, device: str, strategy: str, quantity: str = STEPS
) -> Correction | None:
    """The median of the newest fitting runs' ratios; None while they are fewer than three.

    Args:
        lines: As `store.calibrations.read_corrections` gives them, oldest first.
        device: cpu or cuda.
        strategy: Its name; runs of other degrees of the same kind count.
        quantity: step_seconds or peak_bytes.
    """
    ratios: dict[str, float] = {}  # by run: a resumed one tells again, and its last word counts
    for line in lines:
        ratio = line.get("ratio")
        fits = (line.get("device"), line.get("what")) == (device, quantity)
        if not fits or kind_of(str(line.get("strategy"))) != kind_of(strategy):
            continue
        if isinstance(ratio, int | float) and _SANE[0] <= ratio <= _SANE[1]:
            ratios.pop(str(line.get("run")), None)
            ratios[str(line.get("run"))] = float(ratio)
    newest = sorted(list(ratios.values())[-NEWEST_RUNS:])
    if len(newest) < FEWEST_RUNS:
        return None
    edge = len(newest) // 10
    return Correction(
        factor=statistics.median(newest),
        low=newest[edge],
        high=newest[-1 - edge],
        runs=len(newest),
    )


def correction_lines(
    run: RunRecord, gap: PredictionError, findings: Sequence[Finding]
) -> list[dict[str, Any]]:
    """What the run says: a line for its step and one for its memory; empty where it is no measure.

    `predicted` is the prediction as the model made it, before earlier runs corrected it: else each
    run would correct the correction.
    """
    if run.nodes > 1 or why_no_measure(run, gap, findings):
        return []  # several nodes measure a network too
    time = predicted_time(run.predicted)
    corrected = time.get("correction")
    factor = corrected["factor"] if corrected else 1.0
    factor *= calibration_factor(time)
    lines: list[dict[str, Any]] = []
    parts = predicted_memory(run.predicted).get("parts") or {}
    extra = parts.get(CALIBRATION, 0.0)
    for quantity, name, divisor, added in ((STEPS, STEP, factor, 0.0), (BYTES, PEAK, 1.0, extra)):
        row = gap.row(name)
        if row.measured is None or not row.predicted:
            continue
        predicted = row.predicted / divisor - added
        ratio = row.measured / predicted
        values = {"predicted": predicted, "measured": row.measured, "ratio": ratio}
        lines.append({**_about(run), "what": quantity, **values})
    return lines


def why_no_measure(run: RunRecord, gap: PredictionError, findings: Sequence[Finding]) -> str | None:
    """Why a run measured something else than its stack on its machine; None = it did."""
    if run.rehearsal is not None:
        return "it is a rehearsal, which measures nothing"
    if gap.steady_steps < FEWEST_STEPS:
        return f"it has {gap.steady_steps} steady steps, fewer than {FEWEST_STEPS}"
    troubles = [finding.kind for finding in findings if finding.kind in _TROUBLES]
    if troubles:
        return f"it had {', '.join(troubles)}"
    if "nsys" in "".join(run.command[:1]):
        return "a profiler surrounded every step"
    if gap.row(OTHER_PROCESSES).within is False:
        return "other processes took part of the cores"
    return None


def _about(run: RunRecord) -> dict[str, Any]:
    workload = run.workload or {}
    model = cast("dict[str, Any]", workload.get("model") or {})
    return {
        "run": run.run,
        "time": run.created_at,
        "device": run.device,
        "processes": run.processes,
        "strategy": run.strategy_name,
        "layers": model.get("layers"),
        "hidden": model.get("hidden"),
        **{name: workload.get(name) for name in _SHAPE},
    }


def record_prediction_error(paths: RunPaths, run: RunRecord, findings: Sequence[Finding]) -> None:
    """Write comparison.json from the last view, and what it says about the host's predictions.

    Raises:
        OSError: the run or the store's calibrations cannot be written.
    """
    document = (read_json(paths.view) or {}).get("comparison")
    if not document or not document.get("final"):
        return
    write_json_atomic(paths.comparison, document, indent=2)
    gap = PredictionError.read(document)
    if why_no_measure(run, gap, findings) is None:
        _record_stack(paths, run, gap)
    key = predicted_time(run.predicted).get("host_key")
    lines = correction_lines(run, gap, findings) if key else []
    if lines:
        from workbench.store import calibrations  # noqa: PLC0415  (the catalog, needed once)

        for line in lines:
            calibrations.append_correction(paths.directory.parent, str(key), line)


def _record_stack(paths: RunPaths, run: RunRecord, gap: PredictionError) -> None:
    """Let the run correct the next prediction of its stack."""
    from workbench.observe.prediction_error.stack import stack_measurement  # noqa: PLC0415
    from workbench.store import stack_calibrations  # noqa: PLC0415  (the catalog, needed once)

    measurement = stack_measurement(run, gap)
    if measurement is not None:
        stack_calibrations.keep(paths.directory.parent, measurement)

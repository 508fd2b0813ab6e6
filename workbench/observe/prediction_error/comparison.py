"""Predicted beside measured, for one run: every term that has both, and which one was off most."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from workbench.estimate.timing import COMMUNICATION
from workbench.observe.prediction_error.corrections import Correction
from workbench.observe.prediction_error.explanation import explain
from workbench.observe.prediction_error.steady_steps import Steady
from workbench.observe.prediction_error.terms import (
    BACKWARD,
    BEYOND,
    COMPUTE,
    COST,
    FORWARD,
    INPUT,
    MFU,
    ON_CARD,
    OTHER_PROCESSES,
    PEAK,
    RUN_TIME,
    SLOWEST,
    STEP,
    TOKENS,
    PredictionError,
    PredictionTerm,
)
from workbench.observe.report_recovery import lost
from workbench.observe.summary import (
    peak_memory,
    predicted_memory,
    predicted_peak,
    predicted_time,
    read_comparison,
)
from workbench.store.files import read_json
from workbench.store.layout import RunPaths
from workbench.store.record import read_run
from workbench.store.run_record import (
    REHEARSED,
    OriginDoc,
    PredictedTimeDoc,
    RangeDoc,
    RunRecord,
)

MEMORY_RANGE = (0.90, 1.10)
"""Measured ÷ predicted peak within which memory is as predicted."""
BUSY = 0.15
"""Share of the cores that other processes may take before a host no longer counts as quiet."""
_SAME_WORK = 0.05
"""Tokens of a step may differ so much from the predicted ones before its FLOPs are others too."""
_NOT_COMPUTE = (COMMUNICATION, INPUT, "pipeline bubble", "optimizer", "offload", "recompute")


def read_prediction_error(paths: RunPaths) -> PredictionError:
    """Of a run that has ended, is running, or was made before gaps were kept."""
    view = read_json(paths.view) or {}
    document = read_comparison(paths, view)
    if document:
        return PredictionError.read(document)
    return compare(read_run(paths) or RunRecord(), view, _of_view(view))


def _of_view(view: Mapping[str, Any]) -> Steady:
    """What the charts' snapshot alone reports the steps."""
    median, rate = view.get("step_seconds_median"), view.get("tokens_per_second")
    tokens = rate * median if rate and median else None
    return Steady(steps=view.get("steps") or 0, step_seconds=median, tokens=tokens)


def compare(run: RunRecord, view: Mapping[str, Any], steady: Steady) -> PredictionError:
    """Set what run.json predicted beside what `view` and the steady steps measured.

    Args:
        run: Its record.
        view: A `schema.ViewDoc`; peaks, devices, elapsed time and bill are taken from it.
        steady: The steps' medians.

    Of a rehearsal there is nothing to set beside: its times are the prediction's own.
    """
    if run.rehearsal is not None:
        return PredictionError(explanation=f"{REHEARSED.capitalize()}, so nothing was measured.")
    time = predicted_time(run.predicted)
    rows = [
        *_time_rows(run, time, steady),
        *_rate_rows(run, time, steady),
        *_memory_rows(run, view),
        *_money_rows(run, view, time),
        *_host_rows(run, view),
    ]
    gap = PredictionError(
        rows=tuple(
            term for term in rows if term.predicted is not None or term.measured is not None
        ),
        source=_source(time),
        steady_steps=steady.steps,
        final=view.get("phase") == "ended",
    )
    again = lost(view.get("attempts") or (), view)
    return replace(gap, explanation=explain(gap, run, again.steps if again else 0))


def _source(time: PredictedTimeDoc) -> str | None:
    """What the predicted times rest on, and by what earlier runs corrected them."""
    source, correction = time.get("source"), Correction.read(time.get("correction"))
    return source if source is None or correction is None else f"{source}, {correction}"


def _range(time: PredictedTimeDoc) -> tuple[float | None, float | None]:
    ends = time.get("range") or RangeDoc()
    return ends.get("low_seconds"), ends.get("high_seconds")


def _time_rows(run: RunRecord, time: PredictedTimeDoc, steady: Steady) -> list[PredictionTerm]:
    low, high = _range(time)
    step = PredictionTerm(
        what=STEP,
        group="time",
        unit="s",
        predicted=time.get("step_seconds"),
        low=low,
        high=high,
        measured=steady.step_seconds,
    )
    measured = _measured_causes(run, steady)
    expected = _predicted_causes(run, time, measured)
    return [
        step,
        *(
            PredictionTerm(
                what=name,
                group="cause",
                unit="s",
                predicted=expected.get(name),
                measured=seconds,
            )
            for name, seconds in measured.items()
        ),
    ]


def _measured_causes(run: RunRecord, steady: Steady) -> dict[str, float]:
    """Cause -> seconds per step; they add up to about the step.

    A GPU works on while its process runs ahead, so that entering backward says nothing about the
    forward pass there; nor does the last micro-batch of a pipeline.
    """
    if steady.input_seconds is None or steady.step_seconds is None:
        return {}
    causes = {INPUT: steady.input_seconds}
    if run.processes > 1 and steady.slowest_seconds is not None:
        causes[SLOWEST] = steady.slowest_seconds
    split = run.device == "cpu" and run.strategy.get("pp", 1) == 1
    if split and steady.forward_seconds is not None and steady.backward_seconds is not None:
        return causes | {FORWARD: steady.forward_seconds, BACKWARD: steady.backward_seconds}
    return causes | {COMPUTE: max(0.0, steady.step_seconds - sum(causes.values()))}


def _predicted_causes(
    run: RunRecord, time: PredictedTimeDoc, measured: Mapping[str, float]
) -> dict[str, float]:
    """The estimate's parts, gathered under the causes that can be measured."""
    parts = time.get("parts") or {}
    if not parts:
        return {}
    total = sum(parts.values())
    causes = {INPUT: parts.get(INPUT, 0.0), SLOWEST: parts.get(f"{COMMUNICATION}: {SLOWEST}", 0.0)}
    own = {name: seconds for name, seconds in causes.items() if name in measured}
    remaining = total - sum(own.values())
    if FORWARD not in measured:
        return own | {COMPUTE: remaining}
    compute = sum(value for name, value in parts.items() if not name.startswith(_NOT_COMPUTE))
    forward = compute * _forward_share(run.workload or {})
    return own | {FORWARD: forward, BACKWARD: remaining - forward}


def _forward_share(workload: Mapping[str, Any]) -> float:
    """Share of the compute that lies before the last backward is entered.

    Backward needs twice the FLOPs of forward, with LoRA as many: frozen weights get no gradient.
    With accumulation the passes of all micro-batches but the last lie before it too.
    """
    forward = 1 / 2 if workload.get("lora_rank") else 1 / 3
    batches = max(1, workload.get("accumulate") or 1)
    return (batches - 1 + forward) / batches


def _rate_rows(run: RunRecord, time: PredictedTimeDoc, steady: Steady) -> list[PredictionTerm]:
    step, seconds = time.get("step_seconds"), steady.step_seconds
    low, high = _range(time)
    tokens = steady.tokens or run.tokens_per_step
    work, mfu = time.get("tokens_per_step"), time.get("mfu")
    alike = not (work and tokens) or abs(tokens / work - 1) <= _SAME_WORK
    rate = PredictionTerm(
        what=TOKENS,
        group="rate",
        unit="tokens/s",
        predicted=time.get("tokens_per_second"),
        low=work / high if work and high else None,
        high=work / low if work and low else None,
        measured=tokens / seconds if tokens and seconds else None,
    )
    of_peak = PredictionTerm(
        what=MFU,
        group="rate",
        unit="share",
        predicted=mfu,
        low=mfu * step / high if mfu and step and high else None,
        high=mfu * step / low if mfu and step and low else None,
        measured=mfu * step / seconds if mfu and step and seconds and alike else None,
    )
    samples = tokens is None and run.workload is not None and run.workload.get("seq_len") == 1
    return [of_peak] if samples else [rate, of_peak]


def _memory_rows(run: RunRecord, view: Mapping[str, Any]) -> list[PredictionTerm]:
    predicted, measured = predicted_peak(run.predicted, run.device), peak_memory(view)
    low, high = (
        (None, None) if predicted is None else (predicted * factor for factor in MEMORY_RANGE)
    )
    peak = PredictionTerm(
        what=PEAK,
        group="memory",
        unit="bytes",
        predicted=predicted,
        low=low,
        high=high,
        measured=measured,
    )
    if run.device != "cuda":
        return [peak]
    expected = predicted_memory(run.predicted).get("on_card_bytes")
    card_bytes = _fullest_card(view)
    beyond = None if card_bytes is None or measured is None else max(0.0, card_bytes - measured)
    left = None if expected is None or predicted is None else expected - predicted
    return [
        peak,
        PredictionTerm(what=BEYOND, group="memory", unit="bytes", predicted=left, measured=beyond),
        PredictionTerm(
            what=ON_CARD, group="memory", unit="bytes", predicted=expected, measured=card_bytes
        ),
    ]


def _fullest_card(view: Mapping[str, Any]) -> float | None:
    """Most memory in use on any GPU of the run, as the driver tells it."""
    used: list[float] = []
    for device in cast("list[dict[str, Any]]", view.get("devices") or []):
        series: dict[str, list[float | None]] = device.get("series") or {}
        used += [value for value in series.get("memory_bytes", []) if value is not None]
    spread: dict[str, list[float | None]] = view.get("device_spread") or {}  # of very many
    used += [value for value in spread.get("memory_bytes_high", []) if value is not None]
    return max(used, default=None)


def _money_rows(
    run: RunRecord, view: Mapping[str, Any], time: PredictedTimeDoc
) -> list[PredictionTerm]:
    """The steps made so far at the predicted step, beside the time and the bill so far."""
    steps, step = view.get("steps"), time.get("step_seconds")
    begun = run.resumed_from or OriginDoc()
    made = max(0, steps - (begun.get("step") or 0)) if steps else None
    seconds = made * step if made and step else None
    price, billed = run.usd_per_hour, view.get("usd_so_far")
    usd = seconds * price / 3600 if seconds and price else None
    elapsed = view.get("elapsed_seconds")
    return [
        PredictionTerm(what=RUN_TIME, group="money", unit="s", predicted=seconds, measured=elapsed),
        PredictionTerm(what=COST, group="money", unit="usd", predicted=usd, measured=billed),
    ]


def _host_rows(run: RunRecord, view: Mapping[str, Any]) -> list[PredictionTerm]:
    """What others took of the cores on which CPU ranks are timed.

    Where more cores exist than the run may use, it comes out too low: never a false alarm.
    """
    host: dict[str, Any] = view.get("host") or {}
    series: dict[str, list[float | None]] = host.get("series") or {}
    cores, since = host.get("cores"), view.get("first_step_at")
    if run.device != "cpu" or not cores or since is None:
        return []
    columns = (series.get(name, []) for name in ("time", "cpu_percent", "run_cpu_percent"))
    other_cores = [
        max(0.0, cores * host_percent - own) / 100
        for time, host_percent, own in zip(*columns, strict=False)
        if time is not None and time > since and host_percent is not None and own is not None
    ]
    median_cores = statistics.median(other_cores) if other_cores else None
    return [
        PredictionTerm(
            what=OTHER_PROCESSES,
            group="host",
            unit="cores",
            low=0.0,
            high=BUSY * cores,
            measured=median_cores,
        )
    ]

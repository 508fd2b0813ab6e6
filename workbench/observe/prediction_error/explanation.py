"""The gap in words: which term was off most, in seconds or bytes, and what to do about it."""

from __future__ import annotations

from workbench.observe.prediction_error import terms
from workbench.observe.prediction_error.terms import PredictionError, PredictionTerm
from workbench.store.run_record import RunRecord
from workbench.units import format_between, format_bytes, format_seconds

FEWEST = 5
"""Steady steps below which a step time is not judged."""
_OVERHEAD, _LONG_SECONDS = 0.15, 60.0
_MORE = {
    terms.INPUT: "Use more loader workers, or preprocess the data.",
    terms.SLOWEST: "Check the rank timeline, and what else runs on that rank's device.",
    terms.FORWARD: "Check for other load on this host, then recalibrate: workbench calibrate.",
    terms.BACKWARD: "workbench profile separates computing from waiting for other ranks.",
    terms.COMPUTE: "workbench profile separates computing from waiting for other ranks.",
}
_LESS = "This host is faster than assumed; the next predictions here use the measurements."
_QUICKER = (
    "It was quicker than the measurement that the prediction rests on; the next predictions here "
    "use this run too."
)
_CALIBRATE = "The prediction uses catalog rates: workbench calibrate measures this host."


def explain(gap: PredictionError, run: RunRecord, again: int = 0) -> str:
    """One to four sentences, "" where nothing can be said yet; `again`: steps made twice."""
    sentences = [_step(gap, run), _memory(gap), _overhead(gap, again)]
    return " ".join(sentence for sentence in sentences if sentence)


def _step(gap: PredictionError, run: RunRecord) -> str:
    step = gap.row(terms.STEP)
    if step.predicted is None:
        return _not_predicted(run)
    if step.measured is None or gap.steady_steps < FEWEST:
        return "The run ended too soon to compare step times." if gap.final else ""
    if step.within:
        ends = format_between(step.low, step.high)
        return f"Step {format_seconds(step.measured)}, as predicted ({ends})."
    begin = (
        f"Step {format_seconds(step.measured)}, predicted {format_seconds(step.predicted)} "
        f"({percent(step)})"
    )
    cause = most_off(gap)
    if cause is None:
        return f"{begin}. {_advice(gap, None, step)}"
    return f"{begin}: {cause.what} took {_difference(cause)} than predicted. " + _advice(
        gap, cause, step
    )


def most_off(gap: PredictionError) -> PredictionTerm | None:
    """The cause that adds most, in seconds, to what the step took too much or too little."""
    step = gap.row(terms.STEP)
    if step.measured is None or step.predicted is None:
        return None
    sign = 1 if step.measured > step.predicted else -1
    offs = [
        (sign * (term.measured - term.predicted), term)
        for term in gap.rows
        if term.group == "cause" and term.measured is not None and term.predicted is not None
    ]
    most, cause = max(offs, key=lambda pair: pair[0], default=(0.0, None))
    return cause if most > 0 else None


def _advice(gap: PredictionError, cause: PredictionTerm | None, step: PredictionTerm) -> str:
    of_catalog = gap.source is not None and gap.source.startswith("catalog")
    if (step.measured or 0.0) < (step.predicted or 0.0):
        return _LESS if of_catalog else _QUICKER
    other = gap.row(terms.OTHER_PROCESSES)
    if other.within is False:
        return (
            f"Other processes took {other.text(other.measured)} meanwhile: compare again when "
            "the host is quiet."
        )
    if cause is not None and cause.what in {terms.INPUT, terms.SLOWEST}:
        return _MORE[cause.what]
    if of_catalog:
        return _CALIBRATE
    return _MORE[terms.FORWARD] if cause is None else _MORE[cause.what]


def _not_predicted(run: RunRecord) -> str:
    """Why there is no predicted step time, and what would give one."""
    if not run.workload:
        return "No step time was predicted: the model of this script was not known at launch."
    if run.device == "cpu":
        return (
            "No step time was predicted. On CPU it is for dense models in fp32, on one process or "
            "with ddp, once this CPU is calibrated (workbench calibrate)."
        )
    return "No step time was predicted: the rates of this GPU are not in the catalog."


def _memory(gap: PredictionError) -> str:
    """Only where it was off: that it fits is what people count on."""
    peak = gap.row(terms.PEAK)
    if peak.measured is None or peak.predicted is None or (peak.within and gap.final):
        return "Memory as predicted." if peak.within else ""
    if peak.within or (not gap.final and peak.measured < peak.predicted):
        return ""  # it may still grow
    begin = (
        f"Peak memory {format_bytes(peak.measured)} per rank, predicted "
        f"{format_bytes(peak.predicted)} ({percent(peak)})"
    )
    if peak.measured < peak.predicted:
        return f"{begin}."
    return f"{begin}: leave that much more free when choosing the micro-batch."


def _overhead(gap: PredictionError, again: int) -> str:
    """What a long run spent on anything but steps, and on steps that it made twice."""
    elapsed, step = gap.row(terms.RUN_TIME), gap.row(terms.STEP)
    if not gap.final or elapsed.measured is None or not elapsed.predicted or not step.predicted:
        return ""
    if step.measured is None or elapsed.measured < _LONG_SECONDS:
        return ""
    repeated = again * step.measured
    other = elapsed.measured - elapsed.predicted / step.predicted * step.measured - repeated
    of_all, shares = format_seconds(elapsed.measured), list[str]()
    if other >= _OVERHEAD * elapsed.measured:
        outside = "were outside steps: start, checkpoints, evaluation."
        shares.append(f"{format_seconds(other)} of {of_all} {outside}")
    if repeated >= _OVERHEAD * elapsed.measured:
        steps = f"{again:,} steps that were made twice"
        shares.append(f"{format_seconds(repeated)} of {of_all} went into {steps}.")
    return " ".join(shares)


def _difference(row: PredictionTerm) -> str:
    """In seconds: "220 ms more"."""
    off = (row.measured or 0.0) - (row.predicted or 0.0)
    return f"{format_seconds(abs(off))} {'more' if off > 0 else 'less'}"


def percent(row: PredictionTerm) -> str:
    """Measured against predicted: "+25 %", "n/a" where there is no ratio."""
    return "n/a" if row.ratio is None else f"{100 * (row.ratio - 1):+.0f} %"

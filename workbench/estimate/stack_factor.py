"""What measured runs of a stack say about another job of it: a factor of its time, bytes of memory.

Both are best linear unbiased predictions (kriging): how far a measurement counts is its correlation
with the job, and `NOISE` says how much of what one run shows is its own. Time is scaled as one:
scaling compute alone is no better on the published runs, and layouts keep their order. Memory's
residual is shared out between the states, which are book-keeping, everything that lives and dies
with a step, and a fixed amount (library workspaces), in proportion to what each usually errs by.
`python -m tests.accuracy.score_calibration` prints what one row brings the others of its stack to.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from workbench.describe.stack import StackCalibration, StackFacts, StackMeasurement
from workbench.describe.workload import Workload
from workbench.estimate.timing import CALIBRATION, StepTime
from workbench.units import GIB

NOISE = 0.4
"""Variance that is one configuration's own, over the variance that its stack shares. Fitted: from
0.4 to 0.7 one published row brings the others of its stack equally close; rather the lower end,
since the prediction was fitted to those very stacks and knows others less well."""
TAIL, MEMORY_TAIL = 0.1, 0.01
"""What a configuration may miss of what its stack shares before it counts less: a logarithm of
time, a share of memory. Single layouts miss by more than their stack does, and one of them alone
must not lead the others astray. Fitted as above, each source left out in turn."""
OUTVOTED_BY = 3
"""Configurations from which on one whose time is odd counts less: fewer cannot say which one is."""
SWEEPS = 12
"""Times that each configuration's variance is set again by what it misses."""
UNTOLD = 2.0
"""The same for the range: what it keeps whatever is measured. Fitted: with one row measured 79 % of
the others lie inside, with all others measured 82 %."""
TIME_CORRELATION: Mapping[str, float] = {
    "release": 0.6,
    "script": 0.5,
    "arch": 0.35,
    "precision": 0.8,
}
"""What a difference leaves of the correlation of two jobs' step times. Fitted to published rows,
which `make fit` repeats; the script's is chosen, since no row names one."""
MEMORY_CORRELATION: Mapping[str, float] = {
    "release": 0.8,
    "script": 0.5,
    "arch": 0.35,
    "precision": 0.8,
}
"""The same of memory, whose kernels and libraries differ by generation."""
USUAL_ERRORS = (0.03, 0.3, 0.5 * GIB)
"""Standard deviations: shares of the states and of the rest, a fixed amount. Fitted as above."""
OWN_ERROR = 0.05
"""Share of its prediction by which one configuration's memory differs from its stack's."""
NEWEST_REPEATS, NEWEST_LAYOUTS = 20, 8
"""Measurements that count: of one configuration, whose median is taken, and configurations."""
_LIMITS = ((-0.2, 0.2), (-0.6, 2.0))
"""Shares by which states and the rest may be corrected."""
_MAY_BE_UNKNOWN = frozenset({"release", "script", "arch"})
_UNLIKE = {
    "trainer": "of another trainer ({})",
    "device": "of another kind of device ({})",
    "trained": "it trained {}",
    "has_experts": "only one of the two models has experts",
    "release": "release {}",
    "script": "another script ({})",
    "arch": "GPU generation {}",
    "precision": "precision {}",
}


class _Repeats(NamedTuple):
    """One configuration, measured once or several times."""

    latest: StackMeasurement
    step_ratio: float | None
    peak_ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeFactor:
    """By what the prediction of a step is multiplied."""

    factor: float = 1.0
    """Measured over predicted, as far as it is expected of this job."""
    narrowed: float = 1.0
    """Width of the range over what it is without a measurement, on a logarithmic scale."""
    sentences: tuple[str, ...] = ()
    """Where it comes from, and what does not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTerms:
    """By what the prediction of a rank's memory is changed."""

    states: float = 0.0
    """Share of weights, master copy and optimizer states."""
    rest: float = 0.0
    """Share of everything else that PyTorch allocates."""
    fixed_bytes: float = 0.0
    """Whatever the job."""
    is_measured: bool = False
    """Whether a measurement applies."""
    sentences: tuple[str, ...] = ()
    """Where it comes from, and what does not count."""

    def correction(self, states: float, tensors: float, library_bytes: float = 0.0) -> int:
        """Bytes to add to a rank: with them it still grows with its states and with the rest.

        Args:
            states: Its weights, master copy and optimizer states.
            tensors: All that PyTorch allocates.
            library_bytes: What a CPU rank's libraries take; measured together with the tensors.
        """
        change = self.states * states + self.rest * (tensors - states) + self.fixed_bytes
        return round(max(change, -0.5 * (tensors + library_bytes)))


def facts_of(
    calibration: StackCalibration, workload: Workload, device: str, arch: str = ""
) -> StackFacts:
    """What decides which measurements count for a workload of the calibration's stack."""
    return StackFacts(
        trainer=calibration.trainer,
        release=calibration.release,
        script=calibration.script,
        device=device,
        arch=arch,
        precision=workload.precision,
        trained=workload.trained,
        has_experts=workload.model.experts > 0,
    )


def sentences_of(*estimates: Iterable[str]) -> tuple[str, ...]:
    """What the assumptions of estimates say of a stack's calibration, each once."""
    sentences = (assumption for assumptions in estimates for assumption in assumptions)
    return tuple(
        dict.fromkeys(sentence for sentence in sentences if sentence.startswith(CALIBRATION))
    )


def stack_factor(workload: Workload, device: str, arch: str = "") -> float:
    """By what a prediction of its step is multiplied; 1 = nothing was measured of its stack."""
    calibration = workload.calibration
    if calibration is None:
        return 1.0
    return time_factor(calibration, facts_of(calibration, workload, device, arch)).factor


def calibrated(step: StepTime, workload: Workload, device: str, arch: str = "") -> StepTime:
    """The step as measured runs of the stack correct it, with a part of its own."""
    calibration = workload.calibration
    if calibration is None:
        return step
    correction = time_factor(calibration, facts_of(calibration, workload, device, arch))
    extra = step.step_seconds * (correction.factor - 1)
    return replace(
        step,
        parts={**step.parts, CALIBRATION: extra} if extra else step.parts,
        low=step.low**correction.narrowed,
        high=step.high**correction.narrowed,
        assumptions=(*step.assumptions, *correction.sentences),
    )


@functools.lru_cache(maxsize=1024)
def time_factor(calibration: StackCalibration, facts: StackFacts) -> TimeFactor:
    """Of a job with these facts."""
    measured = [
        repeats for repeats in _configurations(calibration) if repeats.step_ratio is not None
    ]
    used, notes = _counting(calibration, facts, measured, TIME_CORRELATION)
    if not used:
        return TimeFactor(sentences=notes)
    stacks = [repeats.latest.stack for repeats in used]
    shared = [[_correlation(a, b, TIME_CORRELATION) for b in stacks] for a in stacks]
    towards = [_correlation(facts, stack, TIME_CORRELATION) for stack in stacks]
    logs = [math.log(repeats.step_ratio or 1.0) for repeats in used]
    tail = TAIL if len(used) >= OUTVOTED_BY else math.inf
    table = _with_noise(shared, logs, [NOISE] * len(used), [tail] * len(used))
    weights = solve(table, towards)
    explained = min(1.0, _dot(weights, towards))
    factor = math.exp(_dot(weights, logs))
    says = f"step time x {factor:.2f}"
    return TimeFactor(
        factor=factor,
        narrowed=math.sqrt(1 - explained / (1 + UNTOLD)),
        sentences=(_sentence(says, used, facts, "step_ratio"), *notes),
    )


@functools.lru_cache(maxsize=1024)
def memory_terms(calibration: StackCalibration, facts: StackFacts) -> MemoryTerms:
    """Of a job with these facts; where its GPU is not known, less is taken away than added."""
    terms = _memory_terms(calibration, facts)
    if facts.device == "cuda" and not facts.arch and terms.rest < 0:
        return _memory_terms(calibration, facts._replace(arch="not known"))
    return terms


def _memory_terms(calibration: StackCalibration, facts: StackFacts) -> MemoryTerms:
    measured = [
        repeats for repeats in _configurations(calibration) if repeats.peak_ratio is not None
    ]
    used, notes = _counting(calibration, facts, measured, MEMORY_CORRELATION)
    if not used:
        return MemoryTerms(sentences=notes)
    features = [_features(repeats.latest) for repeats in used]
    stacks = [repeats.latest.stack for repeats in used]
    shared = [
        [
            _correlation(a, b, MEMORY_CORRELATION) * _dot(x, y)
            for b, y in zip(stacks, features, strict=True)
        ]
        for a, x in zip(stacks, features, strict=True)
    ]
    predicted = [repeats.latest.predicted_bytes or 1.0 for repeats in used]
    missed = [
        ((repeats.peak_ratio or 1.0) - 1) * size
        for repeats, size in zip(used, predicted, strict=True)
    ]
    noise = [(OWN_ERROR * size) ** 2 for size in predicted]
    table = _with_noise(shared, missed, noise, [MEMORY_TAIL * size for size in predicted])
    blame = solve(table, missed)
    shares = [_correlation(facts, stack, MEMORY_CORRELATION) for stack in stacks]
    states, rest, fixed = (
        usual * sum(c * a * x[at] for c, a, x in zip(shares, blame, features, strict=True))
        for at, usual in enumerate(USUAL_ERRORS)
    )
    (least, most), (least_rest, most_rest) = _LIMITS
    terms = MemoryTerms(
        states=min(most, max(least, states)),
        rest=min(most_rest, max(least_rest, rest)),
        fixed_bytes=fixed,
        is_measured=True,
    )
    says = f"memory: states {terms.states:+.1%}, the rest {terms.rest:+.1%}, {fixed / GIB:+.2f} GiB"
    return replace(terms, sentences=(_sentence(says, used, facts, "peak_ratio"), *notes))


def _with_noise(
    shared: Sequence[Sequence[float]],
    missed: Sequence[float],
    noise: Sequence[float],
    tails: Sequence[float],
) -> list[list[float]]:
    """Covariance of measurements: what they share, and each one's own variance.

    That grows with what the shared part leaves of a measurement beyond its tail (Huber's weights).
    """
    own = list(noise)
    for _ in range(SWEEPS):
        blame = solve(_plus(shared, own), missed)
        left = [abs(variance * share) for variance, share in zip(own, blame, strict=True)]
        own = [
            least * max(1.0, size / tail)
            for least, size, tail in zip(noise, left, tails, strict=True)
        ]
    return _plus(shared, own)


def _plus(table: Sequence[Sequence[float]], diagonal: Sequence[float]) -> list[list[float]]:
    return [
        [value + extra * (at == column) for column, value in enumerate(row)]
        for at, (row, extra) in enumerate(zip(table, diagonal, strict=True))
    ]


def _features(measured: StackMeasurement) -> list[float]:
    """Its states, the rest and the fixed amount, each times what it usually errs by."""
    states, tensors = measured.states_bytes or 0.0, measured.tensors_bytes or 0.0
    parts = (states, max(0.0, tensors - states), 1.0)
    return [usual * part for usual, part in zip(USUAL_ERRORS, parts, strict=True)]


@functools.lru_cache(maxsize=64)
def _configurations(calibration: StackCalibration) -> tuple[_Repeats, ...]:
    """The configurations, the newest last, each with the medians of its newest measurements."""
    groups: dict[object, list[StackMeasurement]] = {}
    for measurement in calibration.measurements:
        earlier = groups.pop((measurement.facts, measurement.layout), [])
        groups[measurement.facts, measurement.layout] = [*earlier, measurement]  # the latest last
    return tuple(_repeats(group[-NEWEST_REPEATS:]) for group in groups.values())


def _repeats(group: Sequence[StackMeasurement]) -> _Repeats:
    steps = [measurement.step_ratio for measurement in group if measurement.step_ratio is not None]
    peaks = [
        measurement.memory_ratio for measurement in group if measurement.memory_ratio is not None
    ]
    with_peak = [measurement for measurement in group if measurement.peak_bytes is not None]
    return _Repeats(
        latest=(with_peak or group)[-1],
        step_ratio=statistics.median(steps) if steps else None,
        peak_ratio=statistics.median(peaks) if peaks else None,
    )


def _counting(
    calibration: StackCalibration,
    facts: StackFacts,
    measured: Sequence[_Repeats],
    correlations: Mapping[str, float],
) -> tuple[list[_Repeats], tuple[str, ...]]:
    """The newest configurations that say something about these facts; why the others do not."""
    used = [
        repeats
        for repeats in measured
        if _correlation(facts, repeats.latest.stack, correlations) > 0
    ]
    notes = _notes(calibration, facts, [repeats for repeats in measured if repeats not in used])
    return used[-NEWEST_LAYOUTS:], notes


def _correlation(facts: StackFacts, other: StackFacts, correlations: Mapping[str, float]) -> float:
    """Of what two jobs miss their predictions by; 0 where one says nothing about the other."""
    share = 1.0
    for name in _differing(facts, other):
        share *= correlations.get(name, 0.0)
    return share


def _differing(facts: StackFacts, other: StackFacts) -> list[str]:
    """The facts in which two jobs differ; what is not known of one of them is none."""
    return [
        name
        for name, value, other_value in zip(StackFacts._fields, facts, other, strict=True)
        if value != other_value and not (name in _MAY_BE_UNKNOWN and "" in {value, other_value})
    ]


def _sentence(says: str, used: Sequence[_Repeats], facts: StackFacts, name: str) -> str:
    latest = used[-1]
    ratio: float = getattr(latest, name)
    more = f" and {len(used) - 1} other configurations" if len(used) > 1 else ""
    unlike = _differing(facts, latest.latest.stack)
    words = [_UNLIKE[field].format(getattr(latest.latest.stack, field)) for field in unlike]
    weaker = f"; {', '.join(words)}, so it counts less" if words else ""
    return (
        f"{CALIBRATION}: {says}, from {latest.latest.source}{more} "
        f"(measured {ratio:.2f} x its prediction{weaker})"
    )


def _notes(
    calibration: StackCalibration, facts: StackFacts, unused: Sequence[_Repeats]
) -> tuple[str, ...]:
    """Why the newest of those that do not count does not."""
    for repeats in reversed(unused):
        stack = repeats.latest.stack
        if calibration.is_named or stack.device == facts.device:
            words = [
                _UNLIKE[fact].format(getattr(stack, fact)) for fact in _differing(facts, stack)
            ]
            return (f"{CALIBRATION}: {repeats.latest.source} does not apply: {', '.join(words)}",)
    return ()


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(left, right, strict=True))


def solve(table: Sequence[Sequence[float]], goals: Sequence[float]) -> list[float]:
    """The solution of a small system whose matrix is positive definite.

    >>> solve([[2.0, 0.0], [0.0, 4.0]], [2.0, 2.0])
    [1.0, 0.5]
    """
    rows = [[*row, goal] for row, goal in zip(table, goals, strict=True)]
    for at, pivot in enumerate(rows):
        for row in rows[:at] + rows[at + 1 :]:
            share = row[at] / pivot[at]
            row[at:] = [
                value - share * pivot_value
                for value, pivot_value in zip(row[at:], pivot[at:], strict=True)
            ]
    return [row[-1] / row[at] for at, row in enumerate(rows)]

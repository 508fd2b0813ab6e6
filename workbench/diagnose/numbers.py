"""What the loss and the gradients say: not a number, spikes, divergence, plateau, ranks apart."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from workbench.diagnose.evidence import Evidence, mean
from workbench.diagnose.hang.flight_recorder import counted, dumped
from workbench.diagnose.nonfinite import nan_loss
from workbench.store.findings import Finding

_RATES_APART, _RATE_OFF = 8, 1e-4  # steps, and relative: beyond what a rounded rate differs by
_LEVEL = 1.5  # spreads that a loss is from 0: nearer, "times as large" compares with noise
_FAR = 5.0  # times where it began, of which no kind of loss makes a good training
_LOWEST = 4  # how many times the lowest of the first losses their median may be
_MAD = 1.4826  # standard deviations in one median absolute deviation of a normal distribution


def nan_gradient(evidence: Evidence) -> Iterator[Finding]:
    """Gradient norms that are no number while the loss is one."""
    if evidence.bad_norms < 3 or evidence.finite_since < 3:
        return  # single ones are a loss scaler's way to find its scale
    yield Finding(
        kind="nan-gradient",
        step=evidence.steps - evidence.bad_norms + 1,
        severity="error",
        confidence=0.8,
        evidence=(
            f"The gradient norm was not finite in {evidence.bad_norms} consecutive steps; the "
            "loss was."
        ),
        cause="The backward pass overflows or divides by zero, so steps are skipped or corrupt "
        "the weights.",
        next="Run one step under torch.autograd.set_detect_anomaly(True), or use bf16.",
    )


def loss_spike(evidence: Evidence) -> Iterator[Finding]:
    """Several of the latest losses far above what the steps before were."""
    rows = list(evidence.losses)[-70:]
    if len(rows) < 50:
        return
    before, now = rows[:-10], rows[-10:]
    middle, spread = _middle(before)
    if abs(middle) <= _LEVEL * spread:
        return  # around 0, as in GRPO before the policy moves: no level to be far above
    enter = evidence.bound("loss-spike", None, 10.0, 5.0)
    high = [
        value
        for value in now
        if value > middle + enter * spread and value > middle + abs(middle) / 2
    ]
    if len(high) < 3:
        return
    step = evidence.steps - len(now) + 1
    yield Finding(
        kind="loss-spike",
        step=step,
        confidence=0.7,
        evidence=f"{len(high)} of the last {len(now)} losses reach {max(high):.4g}; the steps "
        f"before had {middle:.4g} (spread {spread:.2g}).",
        cause=f"Bad data, or an update that was too large, near step {step}.",
        next="Wait 50 steps: if the loss stays up, go back to the checkpoint before, skip these "
        "batches, or clip the gradient norm.",
    )


def divergence(evidence: Evidence) -> Iterator[Finding]:
    """The loss is well above where it began."""
    best, begun = evidence.best_loss, evidence.first_losses
    recent = list(evidence.losses)[-60:]
    if best is None or len(begun) < 10 or len(recent) < 60:
        return
    start, (now, _) = median(begun), _middle(recent[30:])
    if min(best, *begun) <= 0 or start > _LOWEST * min(begun):
        return  # it began at 0 but for noise, as in GRPO: "times as large" means nothing
    factor = evidence.bound("divergence", None, 1.5, 1.2)
    # At least the level it was 30 steps ago: a loss that comes down again has not diverged.
    if now < factor * start or now < 2 * best or now < 0.9 * median(recent[:30]):
        return
    yield Finding(
        kind="divergence",
        step=evidence.steps,
        severity="error" if now >= _FAR * start else "warning",
        confidence=0.75,
        evidence=(
            f"The loss is {now:.4g} (median of 30 steps); it started at {start:.4g}; its best was "
            f"{best:.4g}."
        ),
        cause="The training diverges: a learning rate too high for this batch, or no warm-up. Or "
        "this loss may rise: that of values or of an adversary, another task.",
        next="Stop, lower the learning rate by 3 to 10 times or lengthen the warm-up, and resume "
        "from a checkpoint before the rise.",
    )


def plateau(evidence: Evidence) -> Iterator[Finding]:
    """The loss has stopped falling, or never fell."""
    losses = list(evidence.losses)
    constant = len(losses) >= 50 and len(set(losses[-50:])) == 1
    if constant:
        lr = evidence.rows[-1].lr if evidence.rows else None
        yield Finding(
            kind="plateau",
            step=evidence.steps - 49,
            confidence=0.9,
            evidence=f"The loss is exactly {losses[-1]:.6g} in the last 50 steps.",
            cause=_why_constant(losses[-1], lr),
            next="Check the learning-rate schedule and which parameters the optimizer holds."
            if losses[-1]
            else "Check the loss function, its targets and its mask on one batch.",
        )
    if constant or len(losses) < 1000:
        return
    half = len(losses) // 2
    older, newer = losses[:half], losses[half:]
    gain = mean(older) - mean(newer)
    noise = math.hypot(_spread(older), _spread(newer)) / math.sqrt(half)
    if gain > evidence.bound("plateau", None, 0.001, 0.003) * abs(mean(older)) or gain > 3 * noise:
        return
    yield Finding(
        kind="plateau",
        step=evidence.steps - half,
        severity="note",
        confidence=0.5,
        evidence=f"The mean loss of the last {half} steps is {mean(newer):.4g}, that of the "
        f"{half} before {mean(older):.4g}.",
        cause=(
            "The training has converged, or the learning rate is too low or too high to improve "
            "further."
        ),
        next="Compare with the validation loss; end the run, or change the learning rate.",
    )


def _why_constant(loss: float, lr: float | None) -> str:
    if loss == 0:  # it has no gradient, whatever the optimizer holds
        return (
            "A loss of exactly 0 has nothing left to learn from: the targets are all masked or "
            "trivial, the loss function returns a constant, or the model fits its data perfectly."
        )
    if lr == 0:
        return "Nothing is learned: the learning rate is 0."
    return "Nothing is learned: the parameters are frozen or not given to the optimizer."


def ranks_diverge(evidence: Evidence) -> Iterator[Finding]:
    """Data-parallel ranks that train models of their own: no one averages the gradients."""
    replicas = evidence.spawned or evidence.strategy("name") in {"ddp", None}
    if evidence.processes < 2 or not replicas:
        return
    rows = evidence.latest(64)
    seen = [row for row in rows if len(row.losses) == evidence.processes]
    if len(seen) < 60 or not all(math.isfinite(loss) for r in seen for loss in r.losses.values()):
        return
    columns = [[row.losses[rank] for row in seen] for rank in range(evidence.processes)]
    levels = [mean(column) for column in columns]
    noise = max(_spread(column) for column in columns) / math.sqrt(len(seen))
    high, low = max(levels), min(levels)
    if evidence.first_losses and high < 0.001 * abs(median(evidence.first_losses)):
        return  # all of them have learned what there is to learn
    if high - low > 12 * noise and high - low > 0.5 * max(abs(low), 1e-12):
        yield _separate(evidence, f"their mean losses are {low:.4g} and {high:.4g}", 0.5)


def rates_differ(evidence: Evidence) -> Iterator[Finding]:
    """Ranks that train one model at learning rates of their own."""
    if evidence.processes < 2 or evidence.strategy("pp", 1) > 1:
        return
    seen = [row for row in evidence.latest(64) if len(row.rates) == evidence.processes]
    differing = [row for row in seen if _differ(row.rates.values())]
    if len(differing) < _RATES_APART or len(differing) < len(seen) / 2:
        return
    rates = differing[-1].rates
    usual = median(rates.values())
    odd = max(rates, key=lambda rank: abs(rates[rank] - usual))
    listed = ", ".join(f"rank {rank} {rate:.4g}" for rank, rate in sorted(rates.items())[:8])
    yield Finding(
        kind="rates-differ",
        rank=odd if len(rates) > 2 else None,  # of two, either may be the wrong one
        step=differing[0].step,
        severity="error",
        confidence=0.9,
        evidence=f"In {len(differing)} of {len(seen)} steps the ranks' learning rates differ; the "
        f"latest are {listed}.",
        cause="The ranks apply different updates to one model, so their weights drift apart: the "
        "rate, or its schedule, is computed from something that is each rank's own.",
        next="Compute the learning rate from what is equal on all ranks, or broadcast it from "
        "rank 0; workbench verify shows whether the weights differ by now.",
    )


def _differ(rates: Collection[float]) -> bool:
    low, high = min(rates), max(rates)
    return high - low > _RATE_OFF * max(abs(low), abs(high))


def _separate(evidence: Evidence, observation: str, confidence: float) -> Finding:
    return Finding(
        kind="ranks-diverge",
        step=evidence.steps,
        severity="error",
        confidence=confidence,
        evidence=f"Over the latest steps of {evidence.processes} ranks {observation}.",
        cause="Each rank trains a separate model: the model is not wrapped in "
        "DistributedDataParallel or prepared by Accelerate, so gradients are not averaged.",
        next="Wrap the model (DistributedDataParallel(model), or accelerator.prepare(model)).",
    )


def _spread(values: Sequence[float]) -> float:
    """Standard deviation; `statistics` computes it exactly, and thirty times as slowly."""
    return math.dist(values, [mean(values)] * len(values)) / math.sqrt(len(values))


def _middle(values: Sequence[float]) -> tuple[float, float]:
    """Median and a spread that outliers do not move."""
    middle = median(values)
    return middle, _MAD * median(abs(value - middle) for value in values)


RULES = (nan_loss, nan_gradient, loss_spike, divergence, rates_differ)
SLOW_RULES = (plateau, ranks_diverge)


_FIRST_LOOK = 20  # steps: by then a wrapped model has told of itself
_BETWEEN = 10  # steps between two looks
_LATEST = 2000  # steps after which no rank is asked any more


@dataclass(slots=True)
class UnsynchronizedRanks:
    """Asks the flight recorder twice and compares how many collectives were begun in between.

    Asked only of DDP runs in which no wrapped model was seen: the others have no question.
    """

    requested_at: float | None = None
    requested_step: int = 0
    before: dict[int, int] = field(default_factory=dict[int, int])
    before_step: int = 0
    verdict: str = ""

    def rule(self, evidence: Evidence) -> Iterator[Finding]:
        """Yield once it is sure, and from then on."""
        if self.verdict:
            yield self._finding(evidence)
            return
        if not self._in_question(evidence):
            return
        if self.requested_at is None:
            if not self.before or evidence.steps >= self.before_step + _BETWEEN:
                self._ask(evidence)
            return
        if evidence.facts.time - self.requested_at < 2.0:
            return
        now = {
            rank: count
            for rank in evidence.facts.ranks
            if (count := counted(evidence.paths, rank, self.requested_at - 0.5)) is not None
        }
        answered = [
            rank
            for rank in evidence.facts.ranks
            if dumped(evidence.paths, rank, self.requested_at - 0.5)
        ]
        self.requested_at = None
        if len(answered) > len(now):
            self.before_step = _LATEST  # torch keeps no collectives there: never ask again
        elif self.before and now.keys() == self.before.keys():
            if now == self.before:
                self.verdict = f"between steps {self.before_step} and {self.requested_step}"
            else:
                self.before_step = _LATEST  # they do exchange something: never ask again
        elif len(now) == evidence.processes:
            self.before, self.before_step = now, self.requested_step

    def _in_question(self, evidence: Evidence) -> bool:
        starts = list(evidence.starts.values())
        formed = [start.group_world_size == evidence.processes for start in starts]
        return (
            evidence.processes > 1
            and evidence.facts.phase == "running"
            and (evidence.spawned or evidence.strategy("name") == "ddp")
            and _FIRST_LOOK <= evidence.steps_seen < _LATEST
            and self.before_step < _LATEST
            and len(formed) == evidence.processes
            and all(formed)
            and not any(start.unused_parameters is not None for start in starts)
            and not (evidence.rows and evidence.rows[-1].waited_seconds)  # messages of a pipeline
        )

    def _ask(self, evidence: Evidence) -> None:
        self.requested_at, self.requested_step = evidence.facts.time, evidence.steps
        with contextlib.suppress(OSError):
            (evidence.paths.control / "dump").touch()

    def _finding(self, evidence: Evidence) -> Finding:
        levels = dict((evidence.rows[-1].losses if evidence.rows else {}).items())
        losses = ", ".join(f"rank {rank} {loss:.4g}" for rank, loss in sorted(levels.items())[:8])
        return Finding(
            kind="ranks-diverge",
            step=self.before_step,
            severity="error",
            confidence=0.95,
            evidence=f"No rank started a collective {self.verdict}; the losses now: {losses}.",
            cause="Each rank trains a separate model: a process group exists, but the model is "
            "not wrapped in DistributedDataParallel, so gradients are not averaged.",
            next="Wrap the model (DistributedDataParallel(model), or accelerator.prepare(model)).",
        )

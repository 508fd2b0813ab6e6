"""What each switch saves on the card and what it costs, ranked by bytes saved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from workbench.describe import Cluster, Strategy, Workload
from workbench.describe.hardware import device_of
from workbench.describe.job import Job
from workbench.describe.job_function import takes_whole_job
from workbench.errors import UsageError
from workbench.estimate.memory import training_memory
from workbench.estimate.parts import Estimate
from workbench.estimate.sizing.change import Change
from workbench.estimate.sizing.limits import HEADROOM, leaves_headroom
from workbench.estimate.sizing.strategy_switches import strategy_changes
from workbench.estimate.sizing.workload_switches import workload_changes
from workbench.units import GIB, MIB, format_bytes

_TRIFLE = 8 * MIB  # below it a switch is noise of the estimate
_MOST = 32  # switches in one combination, far more than there are
HOST_BYTES_PER_GPU = 256 * GIB
"""Host memory per GPU where no card is named: what H100 nodes are rented out with (to 256 GB)."""
FREE, COMPUTE, TRAFFIC, HOST, RESULT = range(5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """One change, what it saves and what it costs."""

    name: str
    """What people call it."""
    saves_bytes: int
    """On the card of the fullest rank; negative when it costs memory."""
    on_card_bytes: int
    """What is on the card after it."""
    cost: str
    """One sentence: time, traffic, host memory or generality."""
    option: str
    """The options of ``workbench memory`` that make the change."""
    code: str
    """The same in Python: on `job` where its trainer was named, else `workload` or `strategy`."""
    in_practice: str
    """What changes in a training script."""
    changes_result: bool
    """Whether training computes something else: LoRA, 8-bit moments, lower precision."""
    usual: bool
    """What people do first for such a job."""
    tier: int
    """Kind of cost, cheapest first: 0 none, 1 compute, 2 communication, 3 host, 4 the result."""
    host_bytes: int
    """What moves to host memory, per rank; 0 when nothing does."""
    job: Job
    """The job after it."""
    estimate: Estimate
    """Memory after it."""

    @property
    def workload(self) -> Workload:
        """The workload after it."""
        return self.job.workload

    @property
    def strategy(self) -> Strategy:
        """The strategy after it."""
        return self.job.strategy

    @property
    def fits(self) -> bool | None:
        """Whether it fits the card after it; None without a card."""
        return self.estimate.fits

    @property
    def how(self) -> str:
        """Both forms of the change: on the command line and in Python."""
        return f"{self.option}  or  {self.code}"

    def __str__(self) -> str:
        return f"{self.name}: {format_bytes(-self.saves_bytes)} ({self.cost})"

    __repr__ = __str__

    def document(self) -> dict[str, object]:
        """Plain JSON form."""
        return {
            "name": self.name,
            "saves_bytes": self.saves_bytes,
            "on_card_bytes": self.on_card_bytes,
            "fits": self.fits,
            "cost": self.cost,
            "option": self.option,
            "code": self.code,
            "in_practice": self.in_practice,
            "changes_result": self.changes_result,
            "usual": self.usual,
            "host_bytes": self.host_bytes,
        }


@takes_whole_job
def switches(job: Job, *, costly: bool = False) -> tuple[Switch, ...]:
    """Every legal single change: what is usual first, then the one that saves most.

    Args:
        job: What is trained, how it is spread and where. A trainer that was named decides again
            after each change what the options leave open.
        costly: Also list those that save nothing or cost memory.

    Raises:
        UsageError: the layout itself is impossible.
    """
    legal = list(_switches(job))
    if not costly:
        legal = [switch for switch in legal if switch.saves_bytes >= _TRIFLE]
    return tuple(
        sorted(legal, key=lambda switch: (not switch.usual, -switch.saves_bytes, switch.tier))
    )


def _switches(job: Job) -> Iterator[Switch]:
    before, cluster, workload = training_memory(job), job.cluster, job.workload
    changes = (*strategy_changes(workload, job.strategy), *workload_changes(workload, job.strategy))
    for change in changes:
        try:
            after = change.applied(job)
            switch = _switch(change, job, before, after, training_memory(after))
        except UsageError:
            continue  # not legal here
        lacking = _lacks(cluster, after.workload.precision)
        lacking = lacking and not _lacks(cluster, workload.precision)
        elsewhere = switch.tier != HOST or not _is_host(cluster)
        if elsewhere and _host_holds(switch, cluster) and not lacking:
            yield switch


def _switch(change: Change, job: Job, before: Estimate, after: Job, estimate: Estimate) -> Switch:
    host = sum(
        max(0, _most_held(before, part) - _most_held(estimate, part)) for part in change.on_host
    )
    return Switch(
        name=change.name,
        saves_bytes=before.on_card_bytes - estimate.on_card_bytes,
        on_card_bytes=estimate.on_card_bytes,
        cost=change.cost + (f"; {format_bytes(host)} of host memory per GPU" if host else ""),
        option=change.options(job),
        code=change.code(job),
        in_practice=change.in_practice,
        changes_result=change.changes_result,
        usual=change.usual,
        tier=_tier(change, job, after),
        host_bytes=host,
        job=after,
        estimate=estimate,
    )


def _most_held(estimate: Estimate, part: str) -> int:
    """The most of a part that any peak of any stage holds."""
    return max(
        (peak.parts.get(part, 0) for stage in estimate.stages for peak in stage.peaks), default=0
    )


def _tier(change: Change, before: Job, after: Job) -> int:
    if change.changes_result:
        return RESULT
    if change.on_host or "paged" in after.workload.optimizer:
        return HOST
    degrees = ("dp_replicate", "dp_shard", "zero_stage", "fsdp")
    if any(getattr(after.strategy, name) != getattr(before.strategy, name) for name in degrees):
        return TRAFFIC
    return FREE if change.cost.startswith("none") else COMPUTE


def _lacks(cluster: Cluster | str, precision: str) -> bool:
    """Whether the card has no such number format."""
    card = cluster.accelerator if isinstance(cluster, Cluster) else None
    return card is not None and bool(card.why_not(precision))


def _is_host(cluster: Cluster | str) -> bool:
    """Whether the ranks run in host memory themselves: nothing can move there."""
    return device_of(cluster) == "cpu"


def _host_holds(switch: Switch, cluster: Cluster | str) -> bool:
    """Whether the host's memory holds what moves there."""
    if isinstance(cluster, str) or not cluster.gpus:
        return switch.host_bytes <= HOST_BYTES_PER_GPU
    return switch.host_bytes <= cluster.host_bytes_per_gpu


@takes_whole_job
def switches_that_fit(job: Job, headroom: float = HEADROOM) -> tuple[Switch, ...]:
    """The cheapest combination found that fits with `headroom`, none changing the result.

    Free switches are thrown first, then those that cost compute, communication, host memory;
    at the end those that proved needless are taken back, the costliest first. Each switch is
    measured after the ones before it. Empty when it fits already or when no combination does.

    Raises:
        UsageError: the layout itself is impossible.
    """
    if leaves_headroom(training_memory(job), headroom) is not False:
        return ()
    chosen = _throw(job, headroom, among=None)
    for switch in sorted(chosen[:-1], key=lambda switch: -switch.tier):
        others = frozenset(other.name for other in chosen) - {switch.name}
        fewer = _throw(job, headroom, among=others)
        chosen = fewer or chosen
    return chosen


def _throw(job: Job, headroom: float, among: frozenset[str] | None) -> tuple[Switch, ...]:
    """Throw the cheapest helpful switches one by one until it fits; () when it never does.

    `among`: names of those that may be thrown; None = any that leaves the result as it is.
    """
    thrown: list[Switch] = []
    while len(thrown) < _MOST:
        helpful = [
            switch
            for switch in switches(job)
            if switch.tier < RESULT and (among is None or switch.name in among)
        ]
        if not helpful:
            return ()
        enough = [switch for switch in helpful if leaves_headroom(switch.estimate, headroom)]
        if enough:
            return (*thrown, min(enough, key=lambda switch: (switch.tier, switch.on_card_bytes)))
        best = min(helpful, key=lambda switch: (switch.tier, switch.on_card_bytes))
        thrown.append(best)
        job = best.job
    return ()

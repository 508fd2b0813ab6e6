"""Who waited for whom: the moments at which the ranks entered each collective, joined.

All ranks leave a collective together. So whoever enters it last makes the others wait, and the rank
that waits least over its steps is the one that the others wait for, whatever the strategy: DDP,
FSDP, ZeRO, tensor and context parallelism; a pipeline's messages are waited for in the same way.

Clocks of several hosts: a rank enters its next call after all have entered the one that it waited
for. Where a rank's clock breaks that, it is moved into the middle of what the order allows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, zip_longest
from statistics import median

from workbench.observe.arrival_calls import MOST_CALLS, MOST_STEPS, Call
from workbench.observe.arrival_window import PAUSE, PHASES, ArrivalWindow, RankShare, least_waiting
from workbench.observe.core_time import CoreTime
from workbench.observe.events import StepRow

_ENTERS = 0.002  # seconds by which a clock may tell a call in the optimizer too early
_CLEAR = 0.05  # of a step: a rank is the last one of a step by more than that


def join(
    calls: Mapping[int, Sequence[Call]],
    rows: Sequence[StepRow],
    after: int = 0,
    *,
    hosts: Mapping[int, str] | None = None,
    core_times: Mapping[int, CoreTime] | None = None,
) -> ArrivalWindow | None:
    """The steps beyond `after` that the calls of all ranks cover; None where there are none.

    `hosts`: rank -> what its clock belongs to; without them all ranks have one clock.
    `core_times`: rank -> what kept it from computing.
    """
    ranks = sorted(calls)
    if len(ranks) < 2 or not (all(calls.values()) or (rows and rows[-1].waited_seconds)):
        return None
    times_by_rank = core_times or {}
    steps = _steps(calls, rows, after, times_by_rank)
    if not steps:
        return None
    shifts = clock_shifts(calls, hosts or {})
    begun = {rank: steps[0][0].ended_at[rank] for rank in ranks}
    later_calls = {rank: [call for call in calls[rank] if call.at > begun[rank]] for rank in ranks}
    waits = _waits(later_calls, shifts)
    usual = _without_pauses(steps)
    accounts = [_account(before, row, later_calls, waits, shifts) for before, row in usual]
    for (_, row), account in zip(usual, accounts, strict=True):
        _leave_out_queues(account, row.step, times_by_rank)
    window = _window(usual, accounts, times_by_rank)
    return replace(
        window,
        first=steps[0][1].step,
        last=steps[-1][1].step,
        by_messages=_seldom(calls, rows),
    )


def _without_pauses(steps: list[tuple[StepRow, StepRow]]) -> list[tuple[StepRow, StepRow]]:
    """Without the few steps that an evaluation or a save of one rank makes many times as long."""
    bound = PAUSE * median(row.step_seconds or 0.0 for _, row in steps)
    usual = [step for step in steps if (step[1].step_seconds or 0.0) <= bound]
    return usual if len(steps) - len(usual) <= max(1, len(steps) // 10) else steps


def _steps(
    calls: Mapping[int, Sequence[Call]],
    rows: Sequence[StepRow],
    after: int,
    core_times: Mapping[int, CoreTime],
) -> list[tuple[StepRow, StepRow]]:
    """Each step with the one before it: those that every rank's calls cover."""
    ranks, seldom = len(calls), _seldom(calls, rows)
    counted = [time.queued for time in core_times.values() if time.queued]
    steps: list[tuple[StepRow, StepRow]] = []
    budget, first = MOST_CALLS, next(iter(calls))
    times = [call.at for call in calls[first]]
    for before, row in reversed(list(pairwise(rows))):
        if row.step <= after or len(steps) >= MOST_STEPS:
            break
        if row.step != before.step + 1 or not len(row.ended_at) == len(before.ended_at) == ranks:
            continue
        if len(row.backward_at) != ranks or not row.step_seconds:
            continue
        if any(row.step not in counts for counts in counted):
            continue  # not read yet, as below
        if not seldom:
            if any(own and own[0].at > before.ended_at[rank] for rank, own in calls.items()):
                break
            if any(own and own[-1].at < row.backward_at[rank] for rank, own in calls.items()):
                continue
        begun, ended = before.ended_at[first], row.ended_at[first]
        budget -= ranks * max(1, bisect_right(times, ended) - bisect_right(times, begun))
        if budget < 0 and steps:
            break
        steps.append((before, row))
    return steps[::-1]


def _seldom(calls: Mapping[int, Sequence[Call]], rows: Sequence[StepRow]) -> bool:
    """Whether the ranks of a pipeline exchange messages alone, and collectives now and then."""
    return bool(rows[-1].waited_seconds) and 2 * max(map(len, calls.values())) < len(rows)


def clock_shifts(calls: Mapping[int, Sequence[Call]], hosts: Mapping[int, str]) -> dict[int, float]:
    """Seconds to take from each other host's clock so that no order is broken; 0 where none is."""
    first = min(calls)
    shifts = {first: 0.0}
    reference = _next_entries(calls[first])
    for rank, own in calls.items():
        if rank == first or hosts.get(rank) == hosts.get(first):
            shifts[rank] = 0.0
            continue
        low, high = float("-inf"), float("inf")
        for key, (at, after) in _next_entries(own).items():
            if key in reference:
                entered, left = reference[key]
                low, high = max(low, at - left), min(high, after - entered)
        inside = low <= 0.0 <= high or low > high
        shifts[rank] = 0.0 if inside else (low + high) / 2
    return shifts


def _next_entries(calls: Sequence[Call]) -> dict[tuple[str, int], tuple[float, float]]:
    """Of each call that is waited for: when it was entered, and when the next call was."""
    return {call.key: (call.at, after.at) for call, after in pairwise(calls) if call.waits}


def _waits(
    calls: Mapping[int, Sequence[Call]], shifts: Mapping[int, float]
) -> dict[tuple[str, int], float]:
    """When the last rank of its group entered each call; only calls that all have entered."""
    members: dict[str, set[int]] = defaultdict(set)
    entered: dict[tuple[str, int], list[float]] = defaultdict(list)
    for rank, own in calls.items():
        for call in own:
            members[call.key[0]].add(rank)
            entered[call.key].append(call.at - shifts[rank])
    return {
        key: max(times) for key, times in entered.items() if len(times) == len(members[key[0]]) > 1
    }


@dataclass(slots=True)
class _Account:
    """One step of all ranks."""

    wait: dict[int, float] = field(default_factory=dict[int, float])
    own: dict[int, dict[str, float]] = field(default_factory=dict[int, dict[str, float]])
    queued: dict[int, float] = field(default_factory=dict[int, float])
    exchange: float | None = None
    gather: float | None = None
    tails: dict[int, float] = field(default_factory=dict[int, float])


def _account(
    before: StepRow,
    row: StepRow,
    calls: Mapping[int, Sequence[Call]],
    last: Mapping[tuple[str, int], float],
    shifts: Mapping[int, float],
) -> _Account:
    account = _Account()
    exchanges, gathers = dict[int, float](), dict[int, float]()
    for rank, own in calls.items():
        bounds = _bounds(before, row, rank)
        begin = bisect_right(own, bounds[0], key=_at)
        end = bisect_right(own, bounds[-1], key=_at)
        wait, final = _segments(own[begin:end], bounds, last, shifts[rank])
        gathered = _gathered(own[begin:end], bounds, last) if rank in row.optimizer_at else None
        before_backward = row.forward_waited_seconds.get(rank, 0.0)
        wait["forward"] += before_backward
        wait["backward"] += row.waited_seconds.get(rank, 0.0) - before_backward
        lengths = (after - start for start, after in pairwise(bounds))
        durations = dict(zip(_BOUNDED, lengths, strict=True))
        durations["checkpoint"] = row.paused_seconds.get(rank, 0.0)
        account.own[rank] = {
            phase: max(0.0, durations[phase] - wait.get(phase, 0.0)) for phase in PHASES
        }
        account.wait[rank] = sum(wait.values())
        if final is not None and rank in row.optimizer_at:
            exchanges[rank] = row.optimizer_at[rank] - shifts[rank] - final
        if gathered is not None:
            gathers[rank] = bounds[-1] - shifts[rank] - gathered
    if len(gathers) == len(calls):
        account.gather = max(0.0, min(gathers.values()))
        account.tails = {rank: at - min(gathers.values()) for rank, at in gathers.items()}
    if len(exchanges) == len(calls):
        account.exchange = max(0.0, min(exchanges.values()))
        account.tails = {rank: at - min(exchanges.values()) for rank, at in exchanges.items()}
    return account


def _gathered(
    calls: Sequence[Call], bounds: Sequence[float], last: Mapping[tuple[str, int], float]
) -> float | None:
    """The last arrival at the last call in the optimizer; None where there is none."""
    inside = (call for call in reversed(calls) if call.at >= bounds[3] - _ENTERS)
    return next((last[call.key] for call in inside if call.key in last), None)


_BOUNDED: tuple[str, ...] = ("input", "forward", "backward", "optimizer")


_QUEUED_IN: tuple[tuple[str, ...], ...] = (
    ("forward", "input", "checkpoint"),
    ("backward",),
    ("optimizer",),
)


def _leave_out_queues(account: _Account, step: int, core_times: Mapping[int, CoreTime]) -> None:
    """A rank's wait for a core is no work of its own."""
    account.queued = dict.fromkeys(account.own, 0.0)
    for rank, core_time in core_times.items():
        own = account.own[rank]
        queued = core_time.queued.get(step, ())
        for seconds, phases in zip(queued, _QUEUED_IN, strict=False):
            remaining = seconds
            for phase in phases:
                part = min(remaining, own[phase])
                own[phase] -= part
                remaining -= part
        account.queued[rank] = sum(queued)


def _at(call: Call) -> float:
    return call.at


def _bounds(before: StepRow, row: StepRow, rank: int) -> list[float]:
    """Where the phases of a rank's step begin, and where the last one ends."""
    begun, ended = before.ended_at[rank] + row.paused_seconds.get(rank, 0.0), row.ended_at[rank]
    entered = row.backward_at[rank]
    fed = min(begun + row.data_seconds.get(rank, 0.0), entered)
    return [begun, fed, entered, max(entered, row.optimizer_at.get(rank, ended)), ended]


def _segments(
    calls: Sequence[Call],
    bounds: Sequence[float],
    last: Mapping[tuple[str, int], float],
    shift: float,
) -> tuple[dict[str, float], float | None]:
    """Seconds waited by phase, and the last arrival at the sums at the backward pass's end.

    Between two calls that are waited for the rank waits once: for the longest of them. One that it
    continued from before all had entered it was not waited for, whatever its kind (ZeRO's gathers).
    """
    wait = dict.fromkeys(PHASES, 0.0)
    longest, phase = 0.0, "forward"
    final: float | None = None
    for call, after in zip_longest(calls, calls[1:]):
        late = last.get(call.key)
        if late is None:
            continue
        here = late - (call.at - shift)
        if here > longest:
            longest, phase = here, _BOUNDED[min(3, max(0, bisect_right(bounds, call.at) - 1))]
        if call.at <= bounds[3]:
            final = None if call.waits else late
        if call.waits and (after is None or after.at - shift >= late):
            wait[phase] += longest
            longest = 0.0
    wait[phase] += longest
    return wait, final


def _window(
    steps: Sequence[tuple[StepRow, StepRow]],
    accounts: Sequence[_Account],
    core_times: Mapping[int, CoreTime],
) -> ArrivalWindow:
    rows = [row for _, row in steps]
    count, ranks = len(rows), sorted(accounts[0].wait)
    late, last, heaviest = _last_ranks(rows, accounts, ranks)
    wait = {rank: sum(account.wait[rank] for account in accounts) / count for rank in ranks}
    queued = {rank: sum(account.queued[rank] for account in accounts) / count for rank in ranks}
    own = {
        rank: {
            phase: sum(account.own[rank][phase] for account in accounts) / count for phase in PHASES
        }
        for rank in ranks
    }
    shown_ranks = least_waiting({rank: wait[rank] + queued[rank] for rank in ranks})
    most = PAUSE * median(row.step_seconds or 0.0 for row in rows)
    idle = _beyond_the_others([_idle(account) for account in accounts], most, shown_ranks)
    excess = {
        phase: _beyond_the_others(
            [{rank: own[phase] for rank, own in account.own.items()} for account in accounts],
            most,
            shown_ranks,
        )
        for phase in PHASES
    }
    exchanges = [account.exchange for account in accounts if account.exchange is not None]
    gathers = [account.gather for account in accounts if account.gather is not None]
    return ArrivalWindow(
        time=max(row.time for row in rows),
        first=rows[0].step,
        last=rows[-1].step,
        steps=count,
        step_seconds=sum(row.step_seconds or 0.0 for row in rows) / count,
        late_seconds=late / count,
        exchange_seconds=sum(exchanges) / len(exchanges) if len(exchanges) == count else None,
        gather_seconds=sum(gathers) / len(gathers) if len(gathers) == count else None,
        uneven_seconds=sum(max(account.tails.values(), default=0.0) for account in accounts)
        / count,
        ranks={
            rank: RankShare(
                wait=wait[rank],
                own=own[rank],
                last=last[rank],
                heaviest=heaviest[rank],
                queued=queued[rank],
                late=-idle[rank][0],
                late_square=idle[rank][1],
                tail=sum(account.tails.get(rank, 0.0) for account in accounts) / count,
                excess={phase: value[rank] for phase, value in excess.items()},
                **_interruptions(core_times.get(rank, CoreTime()), steps, rank),
            )
            for rank in sorted(shown_ranks)
        },
        others_wait=median(wait.values()),
        others_own={phase: median(own[rank][phase] for rank in ranks) for phase in PHASES},
        others_queued=median(queued.values()),
    )


def _last_ranks(
    rows: Sequence[StepRow], accounts: Sequence[_Account], ranks: Sequence[int]
) -> tuple[float, dict[int, int], dict[int, int]]:
    """Seconds lost to the last rank of each step; by rank its clear ones, and with most work."""
    late, last, heaviest = 0.0, dict.fromkeys(ranks, 0), dict.fromkeys(ranks, 0)
    for row, account in zip(rows, accounts, strict=True):
        rank, second = sorted(ranks, key=lambda rank: account.wait[rank])[:2]
        cost = account.wait[second] - account.wait[rank]
        late += cost
        if cost > _CLEAR * (row.step_seconds or 0.0):
            last[rank] += 1
            heaviest[rank] += _most(row.rank_tokens or row.rank_samples, rank)
    return late, last, heaviest


def _idle(account: _Account) -> dict[int, float]:
    """By rank: seconds for others and for a core; the rest of the step, equal for all, is work."""
    return {rank: wait + account.queued[rank] for rank, wait in account.wait.items()}


def _beyond_the_others(
    steps: Sequence[Mapping[int, float]], most: float, ranks: Sequence[int]
) -> dict[int, tuple[float, float]]:
    """Over the others' middle, each step cut off at `most`: mean and mean square by rank."""
    sums = {rank: [0.0, 0.0] for rank in ranks}
    for values in steps:
        ordered = sorted(values.values())
        for rank in ranks:
            own = values[rank]
            beyond = max(-most, min(most, own - middle_without(ordered, own)))
            sums[rank][0] += beyond
            sums[rank][1] += beyond * beyond
    return {
        rank: (total / len(steps), square_total / len(steps))
        for rank, (total, square_total) in sums.items()
    }


def middle_without(ordered: Sequence[float], value: float) -> float:
    """The median of ordered values when one of them, `value`, is left out."""
    where, count = bisect_left(ordered, value), len(ordered) - 1
    low, high = (count - 1) // 2, count // 2
    return (ordered[low + (low >= where)] + ordered[high + (high >= where)]) / 2


def _interruptions(
    core_time: CoreTime, steps: Sequence[tuple[StepRow, StepRow]], rank: int
) -> dict[str, float]:
    begin, end = steps[0][0].ended_at[rank], steps[-1][1].ended_at[rank]
    stops, throttled = core_time.between(begin, end)
    return {"stops": stops / len(steps), "throttled": throttled / len(steps)}


def _most(sizes: Mapping[int, int], rank: int) -> bool:
    """Whether the rank's batch was the largest, clearly."""
    other_sizes = [size for other, size in sizes.items() if other != rank]
    return rank in sizes and bool(other_sizes) and sizes[rank] >= 1.05 * max(other_sizes)

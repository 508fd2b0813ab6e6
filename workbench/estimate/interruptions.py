"""How often to save, and how long work lasts on machines that are taken away now and then.

Interruptions come at random with a mean time M between them (exponential). Young 1974
(doi 10.1145/361147.361115): interval sqrt(2 C M). Daly 2006 (doi 10.1016/j.future.2004.11.016):
its higher-order form, and the expected wall time M e^(R/M) (e^((t + C)/M) - 1) T/t of work T
with interval t, checkpoint C and restart R.
"""

from __future__ import annotations

import math

from workbench.errors import UsageError

HOUR = 3600.0
_HOPELESS = 50.0  # interval + checkpoint over M: e^50 tries until one interval gets through


def checkpoint_interval(
    checkpoint_seconds: float, mean_hours_between_interruptions: float
) -> float:
    """Young's best time from one checkpoint to the next, in seconds of work: sqrt(2 C M).

    Args:
        checkpoint_seconds: what one checkpoint holds the training up, C.
        mean_hours_between_interruptions: of the whole job, M, in hours.

    Raises:
        UsageError: M not above 0, C below 0, or either not finite.

    >>> [round(checkpoint_interval(60, hours) / 60) for hours in (8, 1, 72)]
    [31, 11, 93]
    """
    checkpoint = _seconds("checkpoint_seconds", checkpoint_seconds)
    mean = _mean("mean_hours_between_interruptions", mean_hours_between_interruptions) * HOUR
    return math.sqrt(2 * checkpoint * mean)


def daly_interval(checkpoint_seconds: float, mean_hours_between_interruptions: float) -> float:
    """Daly's higher-order best interval in seconds: shorter than Young's where C is not << M.

    Raises:
        UsageError: M not above 0, C below 0, or either not finite.

    >>> round(daly_interval(60, 1)), round(daly_interval(60, 72)), round(daly_interval(9000, 1))
    (618, 5537, 3600)
    """
    checkpoint = _seconds("checkpoint_seconds", checkpoint_seconds)
    mean = _mean("mean_hours_between_interruptions", mean_hours_between_interruptions) * HOUR
    share = checkpoint / (2 * mean)
    if share >= 1:
        return mean
    root = math.sqrt(2 * checkpoint * mean)
    return root * (1 + math.sqrt(share) / 3 + share / 9) - checkpoint


def expected_wall_seconds(
    work_seconds: float,
    checkpoint_seconds: float,
    interval_seconds: float,
    mean_seconds_between_interruptions: float,
    restart_seconds: float,
    *,
    exact: bool = True,
) -> float:
    """Expected wall time of `work_seconds` of training that is interrupted at random.

    Args:
        work_seconds: training itself, T; without checkpoints and restarts.
        checkpoint_seconds: what one checkpoint holds the training up, C.
        interval_seconds: work between two checkpoints, t; longer than T counts as T.
        mean_seconds_between_interruptions: of the whole job, M, in seconds.
        restart_seconds: from an interruption to the first new step, R (a new machine included).
        exact: Daly's exponential form; False = first order, T (1 + C/t + t/(2 M) + R/M), which is
            as good while t + C + R << M and too low beyond.

    Raises:
        UsageError: M or t not above 0, another time below 0, any not finite, or an interval so
            much longer than M that the work would never end.

    >>> day = 86400.0
    >>> round(expected_wall_seconds(day, 60, 1859, day / 3, 300) / day, 3)
    1.079
    >>> round(expected_wall_seconds(day, 60, 1859, day / 3, 300, exact=False) / day, 3)
    1.075
    """
    work = _seconds("work_seconds", work_seconds)
    checkpoint = _seconds("checkpoint_seconds", checkpoint_seconds)
    restart = _seconds("restart_seconds", restart_seconds)
    mean = _mean("mean_seconds_between_interruptions", mean_seconds_between_interruptions)
    interval = min(_mean("interval_seconds", interval_seconds), work)
    if not work:
        return 0.0
    if not exact:
        return work * (1 + checkpoint / interval + interval / (2 * mean) + restart / mean)
    exponent = (interval + checkpoint) / mean
    if exponent > _HOPELESS or restart / mean > _HOPELESS:
        raise UsageError(
            f"Interrupted every {mean:.0f} s on average, the job never gets through an interval "
            f"of {interval:.0f} s with a checkpoint of {checkpoint:.0f} s and a restart of "
            f"{restart:.0f} s. Save more often (checkpoint_interval) or use steadier machines."
        )
    return mean * math.exp(restart / mean) * math.expm1(exponent) * work / interval


def break_even_hours(
    work_seconds: float,
    checkpoint_seconds: float,
    restart_seconds: float,
    most_wall_seconds: float,
) -> float | None:
    """Shortest mean time between interruptions, in hours, that ends within `most_wall_seconds`.

    Each mean is judged at its own best interval (Daly). For spot machines the most is the
    on-demand wall time times on-demand over spot price; above the answer spot is cheaper.

    Returns:
        None when not even uninterrupted work would end in time.

    Raises:
        UsageError: a time below 0 or not finite.

    >>> hours = break_even_hours(86400.0, 60.0, 300.0, 2 * 86400.0)
    >>> round(hours, 3)
    0.264
    """
    work = _seconds("work_seconds", work_seconds)
    most = _seconds("most_wall_seconds", most_wall_seconds)

    def ends(hours: float) -> bool:
        interval = max(daly_interval(checkpoint_seconds, hours), hours * HOUR * 1e-6)
        shortest = (min(interval, work) + checkpoint_seconds) / (hours * HOUR)
        if max(shortest, restart_seconds / (hours * HOUR)) > _HOPELESS:
            return False
        mean = hours * HOUR
        wall = expected_wall_seconds(work, checkpoint_seconds, interval, mean, restart_seconds)
        return wall <= most

    low, high = 1e-6, 1e9
    if not work or not ends(high):
        return None
    while high / low > 1 + 1e-9:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if ends(middle) else (middle, high)
    return high


def _seconds(name: str, given: float) -> float:
    if not 0 <= given < math.inf:
        raise UsageError(f"{name} must be a number of seconds from 0 upwards, not {given}.")
    return float(given)


def _mean(name: str, given: float) -> float:
    if not 0 < given < math.inf:
        raise UsageError(
            f"{name} must be above 0 and finite, not {given}. "
            "Leave interruptions out of the plan when there are none."
        )
    return float(given)

"""How often to save, and how long work lasts on machines that are taken away now and then.

Interruptions come at random with a mean time M between them (exponential). Young 1974
(doi 10.1145/361147.361115): interval sqrt(2 C M). Daly 2006 (doi 10.1016/j.future.2004.11.016):
its higher-order form, and the expected wall time M e^(R/M) (e^((t + C)/M) - 1) T/t of work T
with interval t, checkpoint C and restart R.

How far a single run lies from that: its attempts are renewals. An attempt that lives X saves
g(X) = t floor((X - R) / (t + C)) of work, so T of work takes W = T M / E[g] on average, which is
Daly's term where X is exponential, with the variance T / E[g] Var(X - M / E[g] g) (renewals with
rewards, W. L. Smith 1955, doi 10.1098/rspa.1955.0198). Real interruptions come in bursts: lifetimes
of machines fit Weibull's law with a falling hazard rate, so a shape below 1 (Schroeder and Gibson
2006, abstract at www.pdl.cmu.edu/PDL-FTP/associated/dsn06_abs.shtml, and 2010, doi
10.1109/TDSC.2009.4). Not verified, since only the abstracts were read: that the shapes they fit are
0.7 to 0.8, and the doi of the first, 10.1109/DSN.2006.5. The range goes from shape 1, exponential,
to shape 1/2. In bursts less is lost on average, for there was little to lose yet, and single runs
differ more.
"""

from __future__ import annotations

import functools
import math

from workbench.errors import UsageError
from workbench.units import format_seconds

HOUR = 3600.0
_BURSTS = (1, 2)
"""1 / shape of the Weibull lifetimes that the range covers."""
_SPREAD = 1.2816
"""Standard deviations within which four of five runs lie."""
_SUMMED = 12  # intervals that are added one by one; the rest is an integral
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
            f"Interrupted every {format_seconds(mean)} on average, the job never gets through an "
            f"interval of {format_seconds(interval)} with a checkpoint of "
            f"{format_seconds(checkpoint)} and a restart of {format_seconds(restart)}. Save more "
            "often, make checkpoints and restarts quicker, or use steadier machines."
        )
    return mean * math.exp(restart / mean) * math.expm1(exponent) * work / interval


def wall_range_seconds(
    work_seconds: float,
    checkpoint_seconds: float,
    interval_seconds: float,
    mean_seconds_between_interruptions: float,
    restart_seconds: float,
) -> tuple[float, float]:
    """Wall times between which four of five runs lie whose mean `expected_wall_seconds` gives.

    The rate of interruptions is taken as known; whether they come evenly or in bursts is not.

    Raises:
        UsageError: as `expected_wall_seconds`.

    >>> day = 86400.0
    >>> [round(one / day, 3) for one in wall_range_seconds(8 * day, 60, 1859, day / 3, 300)]
    [8.389, 8.751]
    """
    work, saving = work_seconds, checkpoint_seconds
    mean, restart = mean_seconds_between_interruptions, restart_seconds
    expected = expected_wall_seconds(work, saving, interval_seconds, mean, restart)
    interval = min(interval_seconds, work)
    if not work:
        return 0.0, 0.0
    least = work + work / interval * saving
    ends = [
        (total - _SPREAD * deviation, total + _SPREAD * deviation)
        for total, deviation in (
            _renewals(work, saving, interval, mean, restart, power) for power in _BURSTS
        )
    ]
    low = max(least, min(expected, *(low_end for low_end, _ in ends)))
    return low, max(expected, *(high_end for _, high_end in ends))


def _renewals(
    work: float, saving: float, interval: float, mean: float, restart: float, power: int
) -> tuple[float, float]:
    """Mean and standard deviation of the wall time; lifetimes are Weibull's of shape 1 / `power`.

    With X = s Y^power and Y exponential, what is needed of intervals of length u are sums of
    incomplete gamma functions of whole numbers; their tails are integrals of the same kind.
    """
    scale, unit = mean / math.factorial(power), interval + saving
    saved = squared = crossed = 0.0  # E[g] / t, E[g g] / t^2, E[X g] / t
    for number in range(1, _SUMMED + 1):
        at = ((restart + number * unit) / scale) ** (1 / power)
        survival = math.exp(-at)
        saved += survival
        squared += (2 * number - 1) * survival
        crossed += scale * _gamma(power, at)
    at = ((restart + (_SUMMED + 0.5) * unit) / scale) ** (1 / power)
    dense = scale * power / unit  # intervals per dy are this times y^(power - 1)
    saved += dense * _gamma(power - 1, at)
    above = 2 * scale / unit * _gamma(2 * power - 1, at)
    squared += dense * (above - (2 * restart / unit + 1) * _gamma(power - 1, at))
    crossed += (
        dense
        * scale
        * sum(weight * _gamma(power - 1 + i, at) for i, weight in enumerate(_gamma_weights(power)))
    )
    if not saved:
        return math.inf, math.inf
    price = mean / saved  # seconds on the clock for an interval that is kept
    second = scale**2 * math.factorial(2 * power)
    variance = second - mean**2 - 2 * price * (crossed - mean * saved)
    variance += price**2 * (squared - saved**2)
    attempts = work / interval / saved
    return attempts * mean, math.sqrt(max(0.0, attempts * variance))


def _gamma(power: int, at: float) -> float:
    """The integral of y^power exp(-y) from `at` on."""
    total = 0.0
    for weight in reversed(_gamma_weights(power)):
        total = total * at + weight
    return math.exp(-at) * total


@functools.cache
def _gamma_weights(power: int) -> tuple[float, ...]:
    return tuple(math.factorial(power) / math.factorial(i) for i in range(power + 1))


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


def _seconds(name: str, value: float) -> float:
    if not 0 <= value < math.inf:
        raise UsageError(f"{name} must be a number of seconds from 0 upwards, not {value}.")
    return float(value)


def _mean(name: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise UsageError(
            f"{name} must be above 0 and finite, not {value}. "
            "Leave interruptions out of the plan when there are none."
        )
    return float(value)

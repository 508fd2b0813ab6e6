"""Whether what a run is limited by can be known: its price, its energy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from workbench.errors import UsageError
from workbench.observe.gpu import AT_LAUNCH_SECONDS, PatientGpuSampler, gpus_of_record
from workbench.observe.rapl import ProcessorEnergy
from workbench.recover.policy import Recovery


def check_limits_known(
    recovery: Recovery, usd_per_hour: float | None, device: str, cluster: Mapping[str, Any]
) -> None:
    """Refuse a limit that nothing could be held against.

    Args:
        recovery: With the limits.
        usd_per_hour: Price of the run's machines; None = unknown.
        device: ``cpu`` or ``cuda``.
        cluster: Of a record, field by field.

    Raises:
        UsageError: the price is unknown, or this machine tells no energy.
    """
    is_price_known = usd_per_hour is not None and 0 <= usd_per_hour < math.inf
    if recovery.max_usd is not None and not is_price_known:
        raise UsageError(
            f"--max-usd {recovery.max_usd:g} needs the price of this machine, which is unknown. "
            "Set it, in dollars per hour: WORKBENCH_USD_PER_HOUR=2.50 in front of the command, or "
            "os.environ['WORKBENCH_USD_PER_HOUR'] = '2.50' in a notebook."
        )
    if recovery.max_kwh is not None and not _tells_energy(device, cluster):
        reason = "No GPU here tells its power or energy" if device == "cuda" else _NO_RAPL
        raise UsageError(
            f"--max-kwh {recovery.max_kwh:g} needs energy that can be measured. {reason}. "
            "Limit the time instead: --max-hours."
        )


_NO_RAPL = (
    "On the CPU it is that of the processors, and no RAPL counter in /sys/class/powercap can be "
    "read by this user"
)


def _tells_energy(device: str, cluster: Mapping[str, Any]) -> bool:
    if device != "cuda":
        return ProcessorEnergy().joules() is not None
    sampler = PatientGpuSampler(gpus_of_record(cluster), seconds=AT_LAUNCH_SECONDS)
    samples = sampler.sample()
    return any(sample.power_w is not None or sample.energy_joules is not None for sample in samples)

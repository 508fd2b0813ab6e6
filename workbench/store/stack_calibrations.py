"""What was measured of software stacks, kept beside the calibrations of hosts.

``<store>/calibrations/stacks.corrections.jsonl`` holds one measurement a line, oldest first:
finished runs add theirs, ``workbench calibrate --from`` and ``--measured`` add others.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any, cast

from workbench.describe.job import Job
from workbench.describe.recorded import from_document
from workbench.describe.stack import (
    ALL,
    NONE,
    StackCalibration,
    StackFacts,
    StackMeasurement,
)
from workbench.describe.trainers import Preset
from workbench.describe.trainers.table import DEFAULT
from workbench.errors import UnknownNameError, UsageError
from workbench.store.calibrations import append_correction, read_corrections
from workbench.version import __version__

KEY = "stacks"
SANE = (0.1, 10.0)
"""Measured over predicted; beyond, something else continued."""
NEWEST = 1000
"""Measurements that are looked at: those before them are of older drivers, libraries and code."""
_BYTES = ("peak_bytes", "predicted_bytes", "tensors_bytes", "states_bytes")
_NUMBERS = ("measured_at", "step_ratio", *_BYTES)


def keep(root: str | os.PathLike[str] | None, measurement: StackMeasurement) -> None:
    """Add a measurement; one of the same name no longer counts. Raises StoreError."""
    append_correction(root, KEY, asdict(measurement))


def read(root: str | os.PathLike[str] | None) -> list[StackMeasurement]:
    """The newest measurements that can be read, oldest first, the last of each name."""
    by_name: dict[str, StackMeasurement] = {}
    for line in read_corrections(root, KEY)[-NEWEST:]:
        measurement = _read(line)
        if measurement is not None:
            by_name.pop(measurement.name, None)
            by_name[measurement.name] = measurement
    return list(by_name.values())


def of_stack(
    root: str | os.PathLike[str] | None,
    trainer: Preset | None,
    name: str = ALL,
    *,
    script: str = "",
    host_key: str = "",
) -> StackCalibration | None:
    """What a job of a trainer is to be corrected by; None where there is nothing.

    Args:
        root: The store [default: $WORKBENCH_STORE or ./runs].
        trainer: Of the job; None = what every job assumes.
        name: The measurement that is to count alone; `NONE` = none, `ALL` = all of the trainer.
        script: Name of the script or recipe that a launch starts; "" = not known.
        host_key: CPU that the job runs on; "" = not known, or a GPU.

    Raises:
        UnknownNameError: there is no such measurement.
        UsageError: it stands beside the predictions of another version.
    """
    if name == NONE:
        return None
    own, every = of_trainer(trainer, script), read(root)
    if name != ALL:
        chosen = [_named(every, name)]
    else:
        chosen = [
            measurement
            for measurement in every
            if measurement.stack.trainer == own.trainer
            and measurement.version == __version__
            and (not host_key or measurement.host_key in {"", host_key})
        ]
    if not chosen:
        return None
    return replace(own, measurements=tuple(chosen), is_named=name != ALL)


def of_trainer(trainer: Preset | None, script: str = "") -> StackCalibration:
    """The stack of a trainer, without measurements; None = what every job assumes of a script."""
    if trainer is None:
        return StackCalibration(trainer=DEFAULT, script=script)
    is_identified = trainer.is_named or trainer.is_imported
    return StackCalibration(
        trainer=trainer.trainer.name,
        release=trainer.release,
        script="" if is_identified else script,
    )


def calibrated(job: Job, name: str = ALL, store: str | os.PathLike[str] | None = None) -> Job:
    """The job with what was measured of its stack: estimates and plans of it are corrected.

    Args:
        job: What, how and where.
        name: The measurement that is to count alone, "all" of the trainer, or "none".
        store: The run store [default: $WORKBENCH_STORE or ./runs].

    Raises:
        UnknownNameError: there is no such measurement.
        UsageError: it stands beside the predictions of another version.
    """
    calibration = of_stack(store, job.trainer, name)
    return replace(job, workload=replace(job.workload, calibration=calibration))


def _named(every: list[StackMeasurement], name: str) -> StackMeasurement:
    names = [measurement.name for measurement in every]
    fits = [measurement for measurement in every if measurement.name == name]
    fits = fits or [
        measurement for measurement in every if name and measurement.name.startswith(name)
    ]
    if len(fits) > 1:
        some = ", ".join(fit.name for fit in fits[:6])
        raise UsageError(f"--calibration {name!r} fits {len(fits)} measurements: {some}.")
    if not fits and not names:
        raise UsageError(
            f"--calibration {name!r}: nothing was measured of a stack yet. Next: workbench "
            "calibrate --from RUN, or --measured tokens_per_second=N with a job's options."
        )
    if not fits:
        raise UnknownNameError.near("calibration", name, [*names, ALL, NONE])
    if fits[0].version != __version__:
        raise UsageError(
            f"{fits[0].name} was measured beside the predictions of version {fits[0].version}; "
            f"this is {__version__}. State its figures again: workbench calibrate --model M … "
            "--measured step_seconds=S. Or leave it out: --calibration none."
        )
    return fits[0]


def _read(line: Mapping[str, Any]) -> StackMeasurement | None:
    """The measurement of a line that anyone may have written; None = it is not all there."""
    try:
        measurement = from_document(StackMeasurement, line)
    except (TypeError, ValueError):
        return None
    texts = [
        getattr(measurement, field.name)
        for field in fields(StackMeasurement)
        if field.type == "str"
    ]
    texts += [measurement.gpu or ""]
    numbers = [getattr(measurement, name) for name in _NUMBERS]
    sound = (
        all(map(_is_plain, texts))
        and all(number is None or _is_amount(number) for number in numbers)
        and _are_facts(measurement.facts)
        and _is_amount(measurement.measured_at)
        and (measurement.peak_bytes is None or all(getattr(measurement, name) for name in _BYTES))
        and all(
            ratio is None or is_near(ratio)
            for ratio in (measurement.step_ratio, measurement.memory_ratio)
        )
    )
    return measurement if sound else None


def is_near(ratio: float) -> bool:
    """Whether what was measured is near enough to its prediction to correct others."""
    return SANE[0] <= ratio <= SANE[1]


def _are_facts(value: object) -> bool:
    if not isinstance(value, tuple):
        return False
    facts = cast("tuple[object, ...]", value)
    return len(facts) == len(StackFacts._fields) and all(map(_is_plain, facts[:-1]))


def _is_plain(value: object) -> bool:
    """Text without commands for a terminal."""
    return isinstance(value, str) and value.isprintable()


def _is_amount(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and value >= 0

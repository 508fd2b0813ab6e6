"""The step time of a run before it starts: from this host's calibration, corrected by its runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from workbench.describe import Cluster, Strategy, Workload
from workbench.errors import UsageError
from workbench.estimate.calibration import read as read_measured
from workbench.estimate.host_step import predict_step
from workbench.estimate.stack_factor import calibrated, sentences_of
from workbench.estimate.timing import StepTime
from workbench.observe.prediction_error.corrections import Correction, correction
from workbench.store import calibrations
from workbench.store.runs import Store

CATALOG = "catalog"


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """What a predicted step time rests on."""

    source: str
    """"measured here on DATE …", or "catalog"."""
    host_key: str
    """Of this host in the store's calibrations, where the run's correction will be kept."""
    correction: Correction | None = None
    """By which it was corrected already; None = too few runs like it yet."""
    calibration: tuple[str, ...] = ()
    """What measured runs of its stack say, where no correction is known."""

    def __str__(self) -> str:
        corrections = () if self.correction is None else (str(self.correction),)
        return ", ".join([self.source, *corrections, *self.calibration])

    def document(self) -> dict[str, Any]:
        """Plain JSON form, to go with that of the step time."""
        run_correction = self.correction
        return {
            "source": self.source,
            "host_key": self.host_key,
            "correction": None if run_correction is None else asdict(run_correction),
            "calibration": list(self.calibration),
        }


def predict(
    workload: Workload, strategy: Strategy, cluster: Cluster, device: str, store: Store
) -> tuple[StepTime, Basis] | None:
    """Step time and what it rests on; None where nothing is known to say it from.

    Args:
        workload: What is trained; three runs like it here say more than its stack's measurements.
        strategy: How it is spread.
        cluster: This host, as detected.
        device: ``cuda`` or ``cpu``: a host with GPUs can train on its CPU too.
        store: Where this host's calibration and corrections are kept.
    """
    cpu = device == "cpu"
    if cpu and cluster.nodes > 1:
        return None  # a calibration of a CPU knows the ranks of one machine
    here = replace(cluster, gpus=(), accelerator=None) if cpu else cluster
    key = calibrations.host_key(cluster, cpu=cpu)
    calibration = calibrations.read_calibration(store.root, key)
    measured = read_measured(calibration)
    lines = calibrations.read_corrections(store.root, key)
    run_correction = correction(lines, device=device, strategy=strategy.name)
    plain = replace(workload, calibration=None)
    try:
        step = predict_step(workload if run_correction is None else plain, strategy, here, measured)
    except UsageError:
        return None  # whatever has no prediction may run all the same
    if step is None or not step.step_seconds > 0:
        return None
    source = measured.source if measured is not None and measured.fits(here) else CATALOG
    if cpu and workload.model.measured is not None:
        source = f"a measured step: {workload.model.measured.source}"
    if cpu and run_correction is None:
        step = calibrated(step, workload, "cpu")
    says = sentences_of(step.assumptions)
    basis = Basis(source=source, host_key=key, correction=run_correction, calibration=says)
    return (step if run_correction is None else corrected(step, run_correction)), basis


def corrected(step: StepTime, run_correction: Correction) -> StepTime:
    """The step time times the median of earlier runs' ratios, with their spread as its range."""
    low, high = run_correction.range()
    return replace(
        step,
        parts={name: seconds * run_correction.factor for name, seconds in step.parts.items()},
        low=low,
        high=high,
        assumptions=(*step.assumptions, str(run_correction)),
    )

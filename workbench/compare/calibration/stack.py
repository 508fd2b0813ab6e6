"""One measured run of a software stack, or figures of one, kept to correct the next estimates.

from workbench.compare.calibration.stack import calibrate, calibrated

calibrate(job, measured="9,100 tokens/s, 61.2 GiB")    # or calibrate(run="last")
print(wb.step_time(calibrated(larger_job)))            # commands do this by themselves
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from workbench.compare.calibration.figures import of_figures, read_figures
from workbench.describe.job import Job
from workbench.describe.stack import StackMeasurement
from workbench.errors import UsageError
from workbench.observe.prediction_error.comparison import read_prediction_error
from workbench.observe.prediction_error.corrections import why_no_measure
from workbench.observe.prediction_error.stack import stack_measurement
from workbench.observe.prediction_error.terms import PEAK, STEP
from workbench.observe.summary import summarise
from workbench.store import stack_calibrations
from workbench.store.findings import read_findings
from workbench.store.ownership import check_own
from workbench.store.record import read_run
from workbench.store.run_record import RunRecord
from workbench.store.runs import Store
from workbench.store.stack_calibrations import SANE, calibrated
from workbench.version import __version__

__all__ = ["calibrate", "calibrated"]


def calibrate(
    job: Job | None = None,
    *,
    run: str | None = None,
    measured: Mapping[str, float] | str | None = None,
    name: str | None = None,
    store: str | os.PathLike[str] | None = None,
) -> StackMeasurement:
    """Keep what a run, or figures of one, say about their stack; later estimates are corrected.

    Args:
        job: What the figures are of: trainer, model, layout, GPUs.
        run: A run that has ended, by id, name or "last", instead of a job.
        measured: Of the job: step_seconds, steps_per_second, tokens_per_second (of all GPUs),
            tokens_per_second_per_gpu, samples_per_second or mfu, and peak_gib, peak_gb (allocated),
            reserved_gib or on_card_gib; or a text with them, as "9,100 tokens/s, 61.2 GiB".
        name: What to call the figures [default: after the trainer and the model].
        store: The run store [default: $WORKBENCH_STORE or ./runs].

    Raises:
        UsageError: nothing was measured, or it is impossible; the message says why.
        RunNotFoundError: no such run.
        ForeignRunError: the run is another user's.
        StoreError: the store cannot be written.
    """
    place = Store(store)
    if (run is None) == (job is None) or (job is None) != (measured is None):
        raise UsageError("Give a run that has ended, or a job and what was measured of it.")
    if run is not None:
        measurement = _of_run(place, run)
    else:
        assert job is not None
        assert measured is not None
        figures = read_figures(measured) if isinstance(measured, str) else dict(measured)
        measurement = of_figures(job, figures, name)
    stack_calibrations.keep(place.root, measurement)
    return measurement


def _of_run(store: Store, text: str) -> StackMeasurement:
    """What a run of the store measured, where it measured its stack and nothing else.

    Raises:
        UsageError: it has not ended, measured nothing, or measured its trouble.
        RunNotFoundError: no such run.
        ForeignRunError: it is another user's.
    """
    paths = store.locate(text)
    check_own(paths, "used to calibrate")
    run, summary = read_run(paths) or RunRecord(), summarise(paths)
    name = paths.directory.name
    if run.rehearsal is not None:
        raise UsageError(f"{name} is a rehearsal: it measured nothing. Take a run that trained.")
    if summary["ended_at"] is None:
        raise UsageError(f"{name} has not ended ({summary['state']}). Wait for it, or stop it.")
    gap = read_prediction_error(paths)
    if run.workload is None:
        raise UsageError(
            f"{name} does not say what was trained, so nothing was predicted of it. State its "
            "figures: workbench calibrate --model M … --measured step_seconds=S"
        )
    if gap.row(STEP).measured is None and gap.row(PEAK).measured is None:
        raise UsageError(f"Nothing was measured in {name}: it made no steps that were observed.")
    why = why_no_measure(run, gap, read_findings(paths) or [])
    if why is not None:
        raise UsageError(f"{name} did not measure its stack alone: {why}. Take another run.")
    if run.workbench_version != __version__:
        raise UsageError(
            f"{name} was predicted by version {run.workbench_version or 'n/a'}; this is "
            f"{__version__}. State its figures: workbench calibrate --model M … --measured "
            "step_seconds=S,peak_gib=G"
        )
    measurement = stack_measurement(run, gap)
    if measurement is None:
        raise UsageError(
            f"{name} cannot correct others: neither its step nor its memory was both predicted and "
            f"measured within {SANE[0]:g} to {SANE[1]:g} times the prediction."
        )
    return measurement

"""The notes under the launch form: what could be measured or verified of what it would start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import workbench as wb
from workbench.compare.calibration.calibrate import calibrate
from workbench.estimate.host_step import is_covered
from workbench.verifying.verify import Verification, VerifyOptions, verify
from workbench_widgets.launch.script_note import ScriptNote, target

CALIBRATION_SECONDS = 10.0
CALIBRATE = (
    "The step time on this CPU is not known. Calibrate measures the CPU for about "
    f"{CALIBRATION_SECONDS:.0f} seconds; then the time of a run is predicted, too."
)
MEASURE = (
    "Memory or time of this script is not known. Measure runs it here for a few steps, twice; "
    "then it is predicted for any layout, batch size and GPU."
)
VERIFY = (
    "Verify runs five steps of this script on one rank and on several with the same samples, and "
    "names the first batch, tensor or setting that differs."
)


class CalibrateNote(ScriptNote):
    """While a calibration, kept in `store`, would tell a recipe's step time on this CPU."""

    def __init__(self, store: Path, on_end: Callable[[], None]) -> None:
        self._store = store
        super().__init__("Calibrate", "stopwatch", CALIBRATE, on_end)

    def offered(self, request: wb.Request) -> bool:
        """Whether a calibration of this CPU would tell a recipe's step time."""
        work = request.workload
        unknown = request.device == "cpu" and request.predicted_time is None
        covered = work is not None and is_covered(work, request.strategy)
        return bool(request.recipe) and unknown and covered

    def result_key(self, request: wb.Request) -> tuple[object, ...]:
        """A result holds for every recipe."""
        return (request.device,)

    def work(self, request: wb.Request, on_progress: Callable[[str], None]) -> str:
        """Calibrate, and keep it in the store."""
        assert request.device == "cpu"

        def progressed(share: float, text: str) -> None:
            on_progress(f"{text} ({share:.0%})")

        calibrate(self._store, seconds=CALIBRATION_SECONDS, on_progress=progressed, cpu=True)
        return "Calibrated."


class MeasureNote(ScriptNote):
    """While the script in the form is not known; what is measured of it is kept in `store`."""

    def __init__(self, store: Path, on_end: Callable[[], None]) -> None:
        self._store = store
        super().__init__("Measure", "stopwatch", MEASURE, on_end)

    def offered(self, request: wb.Request) -> bool:
        """Whether nothing predicts the memory or time of a script."""
        is_predicted = request.predicted is not None and request.predicted_time is not None
        return not request.recipe and not is_predicted

    def work(self, request: wb.Request, on_progress: Callable[[str], None]) -> str:
        """Measure it, and keep what was measured in the store."""
        cpu = request.device == "cpu"
        wb.measure(*target(request), cpu=cpu, store=self._store, on_progress=on_progress)
        return "Measured."


class VerifyNote(ScriptNote):
    """While the form would start several ranks of a script: whether they train what one does."""

    def __init__(self) -> None:
        super().__init__("Verify", "check", VERIFY)

    def offered(self, request: wb.Request) -> bool:
        """Whether it is a script with several ranks on this machine."""
        return not request.recipe and request.processes > 1 and request.nodes == 1

    def result_key(self, request: wb.Request) -> tuple[object, ...]:
        """Another strategy or number of ranks is another question."""
        return (*target(request), request.strategy, request.processes)

    def work(self, request: wb.Request, on_progress: Callable[[str], None]) -> str:
        """Verify it; the runs are temporary."""
        options = VerifyOptions(
            ranks=(1, request.processes),
            strategy=(request.strategy.name,),
            cpu=request.device == "cpu",
        )
        return verdict(verify(*target(request), options, on_progress=on_progress))


def verdict(answer: Verification) -> str:
    """The first thing that is wrong with its cause and the next step, or that nothing is."""
    first = answer.first
    if first is None:
        compared = answer.comparison.steps
        how = f"losses and gradients of {compared} steps compared" if compared else "ranks compared"
        return f"Nothing is wrong: {'; '.join(answer.runs)}; {how}."
    return f"{first.kind}, step {first.step}: {first.evidence} {first.cause} {first.next}"

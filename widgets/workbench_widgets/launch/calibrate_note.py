"""``CalibrateNote``: offers to measure this CPU where a recipe's step time is not known without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import workbench as wb
from workbench.compare.calibration.calibrate import calibrate
from workbench.estimate.host_step import is_covered
from workbench_widgets.launch.script_note import ScriptNote

SECONDS = 10.0
OFFER = (
    f"The step time on this CPU is not known. Calibrate measures the CPU for about {SECONDS:.0f} "
    "seconds; then the time of a run is predicted, too."
)


class CalibrateNote(ScriptNote):
    """A button and a line under the form, while a calibration would tell the step time.

    Args:
        store: Folder of runs, where it is kept.
        calibrated: Called when it is done, in the thread that measured.
    """

    def __init__(self, store: Path, calibrated: Callable[[], None]) -> None:
        self._store, self._calibrated = store, calibrated
        super().__init__("Calibrate", "stopwatch", OFFER)

    def offered(self, request: wb.Request) -> bool:
        """Whether a calibration of this CPU would tell a recipe's step time."""
        work = request.workload
        unknown = request.device == "cpu" and request.predicted_time is None
        covered = work is not None and is_covered(work, request.strategy)
        return bool(request.recipe) and unknown and covered

    def what(self, request: wb.Request) -> tuple[object, ...]:
        """A result holds for every recipe."""
        return (request.device,)

    def work(self, request: wb.Request, on_progress: Callable[[str], None]) -> str:
        """Calibrate, and keep it in the store."""
        assert request.device == "cpu"

        def progressed(share: float, text: str) -> None:
            on_progress(f"{text} ({share:.0%})")

        calibrate(self._store, seconds=SECONDS, on_progress=progressed, cpu=True)
        return "Calibrated."

    def ended(self) -> None:
        """Predict again."""
        self._calibrated()

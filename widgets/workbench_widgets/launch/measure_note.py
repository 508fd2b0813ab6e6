"""``MeasureNote``: offers to measure a script that nothing is known of, and says how far it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import workbench as wb
from workbench_widgets.launch.script_note import ScriptNote, target

OFFER = (
    "Memory or time of this script is not known. Measure runs it here for a few steps, twice; "
    "then it is predicted for any layout, batch size and GPU."
)


class MeasureNote(ScriptNote):
    """A button and a line under the form, while the script in it is not known.

    Args:
        store: Folder of runs.
        measured: Called when a script has been measured, in the thread that measured it.
    """

    def __init__(self, store: Path, measured: Callable[[], None]) -> None:
        self._store, self._measured = store, measured
        super().__init__("Measure", "stopwatch", OFFER)

    def offered(self, request: wb.Request) -> bool:
        """Whether nothing predicts the memory or time of a script."""
        known = request.predicted is not None and request.predicted_time is not None
        return not request.recipe and not known

    def work(self, request: wb.Request, on_progress: Callable[[str], None]) -> str:
        """Measure it, and keep what was measured in the store."""
        cpu = request.device == "cpu"
        wb.measure(*target(request), cpu=cpu, store=self._store, on_progress=on_progress)
        return "Measured."

    def ended(self) -> None:
        """Predict again."""
        self._measured()

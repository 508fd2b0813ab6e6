"""``Calibration``: measure this host at the press of a button, beside what the catalog promises."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import traitlets

import workbench as wb
from workbench.compare.calibration.calibrate import USUAL_SECONDS, calibrate, stored_calibration
from workbench.errors import sentence
from workbench.estimate import calibration as measured
from workbench.estimate.calibration_check import Line, amount, lines, troubles
from workbench.store import stack_calibrations
from workbench.units import format_ratio, format_seconds
from workbench_widgets.face import Face
from workbench_widgets.fallback_output import store_config
from workbench_widgets.options import refuse_extra

_LEAST_SECONDS = 0.2  # between two messages of progress
_NEVER = "This host is not calibrated yet: estimates use catalog rates."


class _Cancelled(Exception):  # noqa: N818 - not an error: someone pressed Cancel
    """Ends the measurement from within its progress."""


class Calibration(Face):
    """*Calibrate this host*: live progress, then every figure beside the catalog's, what is slow.

    Args:
        store: Folder of runs, where it is kept; default ``$WORKBENCH_STORE``, else ``./runs``.
        cpu: Measure the CPU of a machine with GPUs.
        seconds: About how long it may take.

    Below stand the runs and figures of trainers that correct their next estimates.
    ``result`` is the kept ``Calibration`` value, None before the first one. It measures in
    processes of its own and a daemon thread: the kernel stays free.

    Raises:
        TypeError: an unknown option.
    """

    shown = traitlets.Dict().tag(sync=True)
    stacks = traitlets.List(traitlets.Unicode()).tag(sync=True)
    _cancelled: threading.Event | None = None  # ipywidgets closes what could not be made, too

    def __init__(
        self,
        *,
        store: str | os.PathLike[str] | None = None,
        cpu: bool = False,
        seconds: float = USUAL_SECONDS,
        **unknown: object,
    ) -> None:
        refuse_extra(Calibration, unknown)
        self.store = Path(wb.Store(store).root)
        self._cpu, self._seconds = cpu, seconds
        self._busy = threading.Lock()
        self._shown_at = 0.0
        self.result = stored_calibration(self.store, cpu=cpu)
        config = store_config(self.store, face="calibration.js")
        super().__init__(config, shown=view(self.result), stacks=self._stacks())

    def _stacks(self) -> list[str]:
        """What was measured of trainers, one line each, the newest first."""
        return [str(measurement) for measurement in reversed(stack_calibrations.read(self.store))]

    def start(self) -> None:
        """Measure in the background; nothing happens while it already does."""
        if self._busy.acquire(blocking=False):
            self._cancelled = threading.Event()
            self.shown = view(self.result, state="running", text="starting")
            threading.Thread(
                target=self._run,
                args=(self._cancelled,),
                name="workbench-calibration",
                daemon=True,
            ).start()

    def cancel(self) -> None:
        """End a measurement that is under way; the earlier calibration stays."""
        if self._cancelled is not None:
            self._cancelled.set()

    def _run(self, cancelled: threading.Event) -> None:
        def on_progress(share: float, text: str) -> None:
            if cancelled.is_set() or self.comm is None:
                raise _Cancelled
            self._progress(share, text)

        try:
            self.result = calibrate(
                self.store, seconds=self._seconds, on_progress=on_progress, cpu=self._cpu
            )
            last = view(self.result)
        except _Cancelled:
            last = view(self.result, text="Cancelled; nothing was saved.")
        except Exception as error:  # noqa: BLE001 - whatever it is, the page has to say it
            last = view(self.result, state="failed", text=sentence(error))
        finally:
            self._busy.release()
        if self.comm is not None:
            self.shown, self.stacks = last, self._stacks()

    def _progress(self, share: float, text: str) -> None:
        now = time.monotonic()
        if now - self._shown_at >= _LEAST_SECONDS:
            self._shown_at = now
            self.shown = {**self.shown, "state": "running", "share": share, "says": text}

    def _receive(self, kind: str, message: dict[str, Any]) -> None:  # noqa: ARG002
        if kind == "calibrate":
            self.start()
        elif kind == "cancel":
            self.cancel()

    def close(self) -> None:
        """End the widget, and a measurement that is under way."""
        self.cancel()
        super().close()

    def __repr__(self) -> str:
        view = self.shown
        text = [view["title"], view["when"], view["says"]]
        text += [
            f"  {row['name']:<36}{row['measured']:>15}{row['catalog']:>15}{row['ratio']:>8}"
            for row in view["rows"]
        ]
        text += [f"! {trouble['what']} {trouble['next']}" for trouble in view["troubles"]]
        text += [f"measured: {stack}" for stack in self.stacks]
        return "\n".join(line for line in text if line)


def view(
    result: measured.Calibration | None, *, state: str = "idle", text: str = ""
) -> dict[str, Any]:
    """What the page draws, as plain values."""
    document = {"state": state, "share": 0.0, "says": text, "rows": [], "troubles": []}
    if result is None:
        return {**document, "title": "This host", "when": "" if text else _NEVER, "compared": False}
    device = f"{result.gpus} x {result.device_name}" if result.gpus else result.device_name or "CPU"
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(result.measured_at))
    table = lines(result)
    return {
        **document,
        "title": f"{result.host}: {device}, {result.cores} cores",
        "when": f"Measured here on {when}, in {format_seconds(result.seconds)}, "
        f"torch {result.versions.get('torch', 'n/a')}.",
        "compared": any(other.expected for other in table),
        "rows": [_row(line, table) for line in table],
        "troubles": [{"what": trouble.what, "next": trouble.next} for trouble in troubles(result)],
    }


def _row(line: Line, table: tuple[Line, ...]) -> dict[str, Any]:
    """A line and its bar: over the catalog's figure, else the best of its kind; a time has none."""
    best = max(other.measured for other in table if other.unit == line.unit)
    relative = None if any(line.expected for line in table) else line.measured / best
    share = None if line.unit == "s" else line.ratio or relative
    return {
        "name": line.name,
        "measured": amount(line.measured, line.unit),
        "catalog": amount(line.expected, line.unit),
        "ratio": format_ratio(line.measured, line.expected),
        "share": share,
        "compared": line.expected is not None,
        "slow": line.is_slow,
    }

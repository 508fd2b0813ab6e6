"""The exact simulation behind the calculator's button: one at a time, in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import workbench as wb
from workbench.estimate.simulate import (
    Simulation,
    SimulationProcess,
    SimulationUnavailable,
    start_simulation,
)
from workbench.units import MIB, format_seconds
from workbench_widgets.job_form import JobForm

POINTS_MAX = 400  # moments of the timeline that are sent; the highest one of each stretch
_BOTTOM = ("parameters", "optimizer states", "gradients", "activations")  # what lasts, first
_LEAST_SECONDS = 0.2  # between two messages of progress


class ExactRun:
    """Starts, follows and cancels; ``on_state`` gets a plain document at every turn."""

    def __init__(self, on_state: Callable[[dict[str, Any]], None]) -> None:
        self._on_state = on_state
        self._lock = threading.Lock()
        self._busy = False
        self._process: SimulationProcess | None = None
        self._cancelled = False
        self._sent_at = 0.0

    def start(self, choice: JobForm) -> None:
        """Simulate what the controls say; nothing happens while one is under way."""
        with self._lock:
            if self._busy:
                return
            self._busy, self._cancelled = True, False
        values = choice.document()
        self._on_state({"state": "running", "share": 0.0, "says": "starting", "values": values})
        threading.Thread(
            target=self._run, args=(choice, values), name="workbench-simulation", daemon=True
        ).start()

    def cancel(self) -> None:
        """End the simulation that is under way, if there is one."""
        self._cancelled = True
        process = self._process
        if process is not None:
            process.cancel()

    def _run(self, choice: JobForm, values: dict[str, Any]) -> None:
        try:
            last = self._simulate(choice, values)
        except SimulationUnavailable as error:
            text = (
                "Cancelled."
                if self._cancelled
                else (f"{error} The closed form above is unchanged.")
            )
            last = {"state": "unavailable", "says": text, "values": values}
        except Exception as error:  # noqa: BLE001 - whatever it is, the page has to say it
            problem = str(error) if isinstance(error, wb.WorkbenchError) else repr(error)
            last = {"state": "unavailable", "says": problem, "values": values}
        with self._lock:
            self._busy, self._process = False, None
        self._on_state(last)

    def _simulate(self, choice: JobForm, values: dict[str, Any]) -> dict[str, Any]:
        job = choice.job()
        estimate = wb.training_memory(job)
        process = self._process = start_simulation(job.workload, job.strategy)
        if self._cancelled:  # pressed before there was anything to cancel
            process.cancel()

        def progress(share: float, text: str) -> None:
            now = time.monotonic()
            if now - self._sent_at >= _LEAST_SECONDS:
                self._sent_at = now
                self._on_state({"state": "running", "share": share, "says": text, "values": values})

        simulation = process.wait(progress)
        return {"state": "done", "values": values, **result(simulation, estimate)}


def result(simulation: Simulation, estimate: wb.Estimate) -> dict[str, Any]:
    """The simulation beside the closed form, compact enough for one message."""
    pairs = (
        ("Allocated", estimate.allocated_bytes, simulation.allocated_bytes),
        ("Reserved", estimate.reserved_bytes, simulation.reserved_bytes),
        ("Reserved, expandable segments", None, simulation.reserved_expandable_bytes),
        ("Smallest card, without context", None, simulation.smallest_card_bytes),
    )
    torch = simulation.versions.get("torch", "n/a")
    return {
        "says": f"Simulated in {format_seconds(simulation.seconds)} with torch {torch}; "
        f"highest in: {simulation.peak}.",
        "rows": [{"name": name, "closed": closed, "exact": exact} for name, closed, exact in pairs],
        "timeline": timeline(simulation.timeline, simulation.phases),
        "assumptions": list(simulation.assumptions),
    }


def timeline(
    moments: Sequence[tuple[int, Mapping[str, int]]], phases: Sequence[tuple[int, str]]
) -> dict[str, Any]:
    """One column of MiB per part, thinned so that the highest moment of each stretch stays."""
    stretch = -(-len(moments) // POINTS_MAX) or 1
    peaks = [
        max(moments[at : at + stretch], key=lambda moment: sum(moment[1].values()))
        for at in range(0, len(moments), stretch)
    ]
    ordered = dict.fromkeys(name for _, parts in peaks for name, size in parts.items() if size)
    names = [name for name in _BOTTOM if name in ordered]
    names += [name for name in ordered if name not in _BOTTOM]
    return {
        "event": [event for event, _ in peaks],
        "parts": {
            name: [round(parts.get(name, 0) / MIB, 1) for _, parts in peaks] for name in names
        },
        "phases": [{"event": event, "name": name} for event, name in phases],
    }

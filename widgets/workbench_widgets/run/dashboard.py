"""``RunDashboard``: one run, live, in one widget."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from workbench.observe.current_view import current_view
from workbench.store.layout import RunPaths
from workbench.store.status import read_status
from workbench_widgets.options import refuse_extra
from workbench_widgets.run.face import RunFace, check_transport, handle_of, run_config


class RunDashboard(RunFace):
    """Live charts, findings, checkpoints, ranks, logs, and Stop and Resume, for one run.

    Args:
        run: A ``Run`` from ``wb.launch`` or ``wb.attach``, or its name.
        transport: ``"auto"`` reads the run's files through Jupyter where it serves them, which
            works while the kernel is busy, and falls back to the comm; ``"comm"`` forces that.
        refresh_seconds: Time between two readings of ``view.json``.
        smoothing: Weight of the past in the smoothed loss, 0 (raw) to 0.98.

    Raises:
        TypeError: an unknown option.
        ValueError: an option out of its range.
    """

    def __init__(
        self,
        run: Any,
        *,
        transport: str = "auto",
        refresh_seconds: float = 0.7,
        smoothing: float = 0.6,
        _reusable: bool = False,
        **unknown: object,
    ) -> None:
        refuse_extra(RunDashboard, unknown)
        check_transport(transport, refresh_seconds)
        if not 0 <= smoothing <= 0.98:
            raise ValueError(f"smoothing={smoothing!r}: give 0 (raw) to 0.98")
        run = handle_of(run)
        config = run_config(
            run,
            face="run_dashboard.js",
            transport=transport,
            refresh_ms=round(refresh_seconds * 1000),
            smoothing=smoothing,
            reusable=_reusable,
        )
        self._on_reuse: list[Callable[[Any], None]] = []
        super().__init__(run, config)

    def on_reuse(self, callback: Callable[[Any], None]) -> None:
        """Call ``callback(run)`` when someone wants this run's settings in a launch form."""
        self._on_reuse.append(callback)

    def _receive(self, kind: str, message: dict[str, Any]) -> None:
        super()._receive(kind, message)
        if kind == "reuse":
            for callback in self._on_reuse:
                callback(self.run)

    def __repr__(self) -> str:
        paths = RunPaths(Path(self.run.directory))
        view, status = current_view(paths), read_status(paths)
        state = status.outcome or status.state
        steps = view.get("steps")
        of = f"/{view['steps_total']}" if view.get("steps_total") else ""
        step = f"step {steps}{of}" if steps else "no step yet"
        loss = view.get("loss_last")
        loss_text = f"loss {loss:.4g}" if isinstance(loss, int | float) else "loss n/a"
        lines = [f"RunDashboard({self.run.id!r}: {state}, {step}, {loss_text})"]
        lines += [f"  {status.message}"] if status.state == "unsupervised" else []
        standing = [
            finding for finding in view.get("findings") or [] if finding.get("cleared_at") is None
        ]
        lines += [
            f"  {finding.get('severity', 'warning')}: {finding.get('cause')}"
            for finding in standing[:5]
        ]
        compared = (view.get("comparison") or {}).get("explanation")
        lines += [f"  {compared}"] if compared else []
        return "\n".join(lines)

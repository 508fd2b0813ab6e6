"""``Checkpoints``: what a run has saved, whether it is complete, and where to resume from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workbench.observe.report_recovery import verified_text
from workbench.store.files import read_json
from workbench.units import format_bytes
from workbench_widgets.options import refuse_extra
from workbench_widgets.run.face import RunFace, check_transport, handle_of, run_config


class Checkpoints(RunFace):
    """The table of a run's checkpoints: step, size, verified or not, *Resume from here*.

    Args:
        run: A ``Run`` from ``wb.launch`` or ``wb.attach``, or its name.
        transport: As for `RunDashboard`.
        refresh_seconds: Time between two readings of ``view.json``.

    Raises:
        TypeError: an unknown option.
        ValueError: an option out of its range.
    """

    def __init__(
        self,
        run: Any,
        *,
        transport: str = "auto",
        refresh_seconds: float = 1.0,
        **unknown: object,
    ) -> None:
        refuse_extra(Checkpoints, unknown)
        check_transport(transport, refresh_seconds)
        run = handle_of(run)
        refresh_ms = round(refresh_seconds * 1000)
        config = run_config(
            run, face="checkpoints.js", transport=transport, refresh_ms=refresh_ms, smoothing=0
        )
        super().__init__(run, config)

    def __repr__(self) -> str:
        view = read_json(Path(self.run.directory) / "view.json") or {}
        saved = view.get("checkpoints") or []
        lines = [f"Checkpoints of {self.run.id!r} ({len(saved)})"]
        lines += [
            f"  step {row.get('step')}  {format_bytes(row.get('bytes'))}  {verified_text(row)}"
            for row in saved[:10]
        ]
        return "\n".join(lines)

"""``RunDashboard``: one run, live, in one widget."""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from workbench_widgets import assets
from workbench_widgets.keeper import show, store_config
from workbench_widgets.options import refuse_unknown
from workbench_widgets.snapshots import SnapshotPusher, read_json

_OPTIONS = ("run", "transport", "refresh_seconds", "smoothing")
_TRANSPORTS = ("auto", "comm")


class RunDashboard(anywidget.AnyWidget):
    """Live charts, ranks, logs and a Stop button for one run.

    Args:
        run: A ``Run`` from ``wb.launch`` or ``wb.attach``.
        transport: ``"auto"`` reads the run's files through Jupyter where it serves them, which
            works while the kernel is busy, and falls back to the comm; ``"comm"`` forces that.
        refresh_seconds: Time between two readings of ``view.json``.
        smoothing: Weight of the past in the smoothed loss, 0 (raw) to 0.98.

    Raises:
        TypeError: an unknown option.
        ValueError: an option out of its range.
    """

    _esm = assets.LOADER
    config = traitlets.Dict().tag(sync=True)
    _pusher: SnapshotPusher | None = None

    def __init__(
        self,
        run: Any,
        *,
        transport: str = "auto",
        refresh_seconds: float = 0.7,
        smoothing: float = 0.6,
        **unknown: object,
    ) -> None:
        refuse_unknown("RunDashboard", unknown, _OPTIONS)
        _check(transport, refresh_seconds, smoothing)
        self.run = run
        self._pusher = SnapshotPusher(run, self._push)
        super().__init__(
            config=_dashboard_config(
                Path(run.directory),
                run_id=str(run.id),
                transport=transport,
                refresh_ms=round(refresh_seconds * 1000),
                smoothing=smoothing,
            )
        )
        self.on_msg(self._on_message)

    def _push(self, snapshot: dict[str, Any]) -> None:
        self.send(snapshot)

    def _on_message(self, _widget: object, message: Any, _buffers: object) -> None:
        """Answer the front end. Runs in the kernel's main thread or a subshell: never blocks."""
        kind = message.get("type") if isinstance(message, dict) else None
        if kind == "asset" and message.get("name") in ("bundle", "plotly"):
            send_asset(self, message["name"])
        elif kind == "subscribe":
            if self._pusher is not None:
                self._pusher.start()
        elif kind == "stop":
            now = bool(message.get("now"))
            stop = functools.partial(self.run.request_stop, now=now)
            threading.Thread(target=stop, name="workbench-stop", daemon=True).start()

    def close(self) -> None:
        """End the widget. The run goes on."""
        if self._pusher is not None:
            self._pusher.stop()
        super().close()

    def _ipython_display_(self) -> None:
        show(self._repr_mimebundle_(), self.config)

    def __repr__(self) -> str:
        """Plain text for terminals, screen readers and saved notebooks."""
        view = read_json(Path(self.run.directory) / "view.json") or {}
        state = view.get("outcome") or view.get("phase") or "starting"
        steps = view.get("steps")
        of = f"/{view['steps_total']}" if view.get("steps_total") else ""
        step = f"step {steps}{of}" if steps is not None else "no step yet"
        loss = view.get("loss_last")
        said = f"loss {loss:.4g}" if isinstance(loss, int | float) else "loss n/a"
        return f"RunDashboard({self.run.id!r}: {state}, {step}, {said})"


def send_asset(widget: anywidget.AnyWidget, name: str) -> None:
    """Send a gzip-compressed asset to a page that cannot get it through ``/files/``."""
    widget.send({"type": "asset", "name": name}, buffers=[assets.compressed(name)])


def _check(transport: str, refresh_seconds: float, smoothing: float) -> None:
    if transport not in _TRANSPORTS:
        raise ValueError(f"transport={transport!r}: choose one of {', '.join(_TRANSPORTS)}")
    if not 0.2 <= refresh_seconds <= 60:
        raise ValueError(f"refresh_seconds={refresh_seconds!r}: choose between 0.2 and 60")
    if not 0 <= smoothing <= 0.98:
        raise ValueError(f"smoothing={smoothing!r}: choose between 0 (raw) and 0.98")


def _dashboard_config(directory: Path, *, run_id: str, **own: Any) -> dict[str, Any]:
    """Everything the front end needs to find the run, and what is known before its first view."""
    about = read_json(directory / "run.json") or {}
    served = own["transport"] == "auto"
    config = store_config(
        directory.parent, face="run_dashboard.js", served=served, run=run_id, **own
    )
    store_path = config["store_path"]
    config["run_path"] = (
        None if store_path is None else f"{store_path}/{directory.name}".lstrip("/")
    )
    config["about"] = {
        "name": about.get("name") or run_id,
        "strategy": about.get("strategy_name"),
        "processes": about.get("processes"),
        "device": about.get("device"),
        "steps_total": about.get("steps_total"),
    }
    return config

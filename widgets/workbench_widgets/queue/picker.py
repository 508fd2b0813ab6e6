"""``DevicePicker``: tick the GPUs, or slots of cores, that a run is to have."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import traitlets

import workbench as wb
from workbench.describe.option import several
from workbench.errors import UnknownNameError
from workbench.queueing import Queue
from workbench_widgets.face import Face
from workbench_widgets.fallback_output import store_config
from workbench_widgets.options import refuse_extra


class DevicePicker(Face):
    """The devices of this host as boxes, each with its free memory and who holds it.

    The trait ``value`` is what a launch takes as ``devices``: the names ticked, in their order; ()
    leaves the choice to the launch.

    Args:
        store: Folder of runs whose runs hold devices.
        value: The names ticked at first.

    Raises:
        TypeError: an unknown option.
        UnknownNameError: a name that is no device of this host.
    """

    value: Any = traitlets.Tuple(()).tag(sync=True)
    devices = traitlets.List().tag(sync=True)

    def __init__(
        self,
        *,
        store: str | Path | None = None,
        value: str | Iterable[str | int] = (),
        **unknown: object,
    ) -> None:
        refuse_extra(DevicePicker, unknown)
        self._queue = Queue(store)
        self._kind = ""
        config = store_config(Path(wb.Store(store).root), face="device_picker.js")
        super().__init__(config, devices=self._read())
        self.value = self._known(value)

    def _known(self, given: Any) -> tuple[str, ...]:
        known = [device["name"] for device in self.devices]
        names = [str(name) for name in several(given)]
        for name in names:
            if name not in known:
                raise UnknownNameError.near("device", name, known)
        return tuple(name for name in known if name in names)

    def _read(self) -> list[dict[str, Any]]:
        every = [device.document() for device in self._queue.devices()]
        return [device for device in every if self._kind in ("", device["kind"])]

    def show_kind(self, kind: str) -> None:
        """Offer devices of one kind alone, ``"gpu"`` or ``"slot"``; nothing if there is but one."""
        if kind == self._kind:
            return
        self._kind = kind
        self.refresh()
        names = [device["name"] for device in self.devices]
        self.value = tuple(name for name in self.value if name in names)
        self.layout.display = None if len(names) > 1 else "none"

    def refresh(self) -> None:
        """Read who holds what now."""
        self.devices = self._read()

    def _receive(self, kind: str, message: dict[str, Any]) -> None:
        if kind == "refresh":
            self.refresh()
        elif kind == "pick":
            device_names = [device["name"] for device in self.devices]
            ticked = message.get("names")
            chosen = ticked if isinstance(ticked, list) else []
            self.value = tuple(name for name in device_names if name in chosen)

    def __repr__(self) -> str:
        return f"DevicePicker({', '.join(self.value) or 'any'})"

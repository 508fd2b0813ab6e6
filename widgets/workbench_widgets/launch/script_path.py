"""``ScriptPath``: the script to launch, typed or picked from the folders of this notebook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import traitlets

from workbench_widgets.face import Face
from workbench_widgets.fallback_output import store_config
from workbench_widgets.launch.folders import listing


class ScriptPath(Face):
    """A path with a file picker; ``value`` is what stands in it."""

    value = traitlets.Unicode("").tag(sync=True)

    def __init__(self, value: str, *, store: Path) -> None:
        super().__init__(store_config(store, face="script_path.js"), value=value)

    def _receive(self, kind: str, message: dict[str, Any]) -> None:
        if kind == "path" and isinstance(message.get("value"), str):
            self.value = message["value"].strip()
        elif kind == "list":
            self.send(listing(str(message.get("folder", "")), (".py",)))

    def __repr__(self) -> str:
        return f"ScriptPath({self.value!r})"

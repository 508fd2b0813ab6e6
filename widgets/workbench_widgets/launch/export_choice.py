"""What the export's controls say: the declared options of an `ExportRequest`, and the engine."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from workbench.describe.checks import require_choice
from workbench.describe.option import declared
from workbench.engines.export_request import ExportRequest
from workbench.engines.limits import ABSENT
from workbench.engines.refusals import ENGINES, RENTING
from workbench_widgets.form import Form
from workbench_widgets.options import as_typed

RENAMED = {"checkpoints": "checkpoint_uri"}
"""Control -> field of `ExportRequest`, where the two differ."""
MACHINES = ("nodes", "processes_per_node", "gpu", "strategy", "provider", "region", "spot")
LIMITS = (
    *("checkpoints", "checkpoint_every", "restarts", "max_hours", "max_usd_per_hour"),
    *("max_usd", "usd_per_hour", "max_kwh"),
    *("idle_minutes", "disk_gb", "image", "name"),
)
OPTIONS = {name: declared(ExportRequest)[RENAMED.get(name, name)] for name in (*MACHINES, *LIMITS)}
"""Control -> what is declared of it."""
_EMPTY = {bool: False, str: ""}


@dataclass(frozen=True, slots=True)
class ExportChoice(Form):
    """One setting of all controls; empty = not given."""

    FACE = "Export"
    FIRST = {  # noqa: RUF012 - a class variable of `Form`
        **dict.fromkeys(("arguments", "address"), ""),
        **{name: _EMPTY.get(field.plain_type) for name, field in OPTIONS.items()},
        "what": "gpt",
        "engine": "skypilot",
    }

    def plain(self, name: str, value: Any) -> Any:
        """Text stays text; an emptied number is not given."""
        if name == "arguments":
            return as_typed(value)
        first = self.FIRST[name]
        if isinstance(first, bool):
            return bool(value)
        if isinstance(first, str):
            return "" if value is None else str(value).strip()
        return None if value == "" else value

    def hidden(self) -> list[str]:
        """Controls without effect as the others stand."""
        away = [] if self["engine"] in {"torchrun", "accelerate"} else ["address"]
        away += [] if self["engine"] in RENTING else ["provider"]
        return [*away, *(name for name in ABSENT.get(self["engine"], ()) if name in OPTIONS)]

    def request(self) -> ExportRequest:
        """As the engines' package takes it.

        Raises:
            UnknownNameError: there is no such engine.
            ValueError: the arguments have an open quote, or a value is not allowed.
        """
        require_choice("engine", self["engine"], ENGINES)
        away = self.hidden()
        options = {
            RENAMED.get(name, name): self[name]
            for name in OPTIONS
            if name not in away and self[name] not in ("", None)
        }
        return ExportRequest.of(
            self["what"], {"arguments": tuple(shlex.split(self["arguments"])), **options}
        )

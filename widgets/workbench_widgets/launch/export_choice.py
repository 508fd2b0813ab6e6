"""What the export's controls say: a run, recipe or script, an engine, machines and storage."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workbench.engines.asked import Wish
from workbench.engines.limits import ABSENT
from workbench.engines.refusals import RENTING
from workbench_widgets.options import refuse_unknown

FACE = "Export"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportChoice:
    """One setting of all controls; empty text = not given."""

    what: str = "gpt"
    """A run's id, a recipe or a script."""
    arguments: str = ""
    """Of a recipe or script, as typed in a shell."""
    engine: str = "skypilot"
    """One of the engines."""
    strategy: str = ""
    """A name; empty = the run's, or ddp."""
    nodes: int | None = None
    """Machines; None = the run's ranks on one."""
    processes_per_node: int | None = None
    """Ranks on each."""
    gpu: str = ""
    """Accelerator; empty = the run's, or CPU."""
    provider: str = ""
    """Only there; empty = wherever."""
    spot: bool = False
    """Machines that may be taken back."""
    checkpoints: str = ""
    """What outlives the machines."""
    checkpoint_every: int | None = None
    """Recipes: steps between checkpoints."""
    restarts: int | None = None
    """Starts after a failure; None = 0."""
    max_hours: float | None = None
    """Time limit."""
    idle_minutes: int | None = None
    """Idle machines are given back then."""
    image: str = ""
    """Container image."""
    address: str = ""
    """Plain commands: the first machine's."""

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> ExportChoice:
        """Build from the constructor's keyword arguments.

        Raises:
            TypeError: an unknown option.
        """
        refuse_unknown(FACE, {one: 0 for one in options if one not in FIELDS}, FIELDS)
        return cls().changed(options)

    def changed(self, changes: Mapping[str, Any]) -> ExportChoice:
        """The choice after some controls were moved; unknown names are left out."""
        known = {name: _plain(name, value) for name, value in changes.items() if name in FIELDS}
        return dataclasses.replace(self, **known)

    def document(self) -> dict[str, Any]:
        """Plain values for the front end."""
        return {name: getattr(self, name) for name in FIELDS}

    def hidden(self) -> list[str]:
        """Controls without effect as the others stand."""
        away = [] if self.engine in {"torchrun", "accelerate"} else ["address"]
        away += [] if self.engine in RENTING else ["provider"]
        return [*away, *(name for name in ABSENT.get(self.engine, ()) if name in FIELDS)]

    def wish(self) -> Wish:
        """As the engines' package takes it.

        Raises:
            ValueError: the arguments have an open quote.
        """
        away = self.hidden()
        return Wish(
            what=self.what,
            arguments=tuple(shlex.split(self.arguments)),
            strategy=self.strategy or None,
            nodes=self.nodes,
            processes_per_node=self.processes_per_node,
            gpu=self.gpu or None,
            provider=None if "provider" in away else self.provider or None,
            spot=bool(self.spot),
            checkpoint_uri=self.checkpoints or None,
            checkpoint_every=self.checkpoint_every,
            restarts=0 if "restarts" in away else self.restarts or 0,
            max_hours=None if "max_hours" in away else self.max_hours,
            idle_minutes=None if "idle_minutes" in away else self.idle_minutes,
            image=None if "image" in away else self.image or None,
        )


FIELDS = tuple(one.name for one in dataclasses.fields(ExportChoice))
_TEXTS = {one.name for one in dataclasses.fields(ExportChoice) if one.type == "str"}


def _plain(name: str, value: Any) -> Any:
    """Text stays text; an emptied number is none."""
    if name in _TEXTS:
        return "" if value is None else str(value).strip()
    if name == "spot":
        return bool(value)
    return None if value in ("", None) else value

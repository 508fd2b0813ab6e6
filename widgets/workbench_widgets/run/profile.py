"""``Profile``: where each rank's time goes in some traced steps of a run, and its traces."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import traitlets

import workbench as wb
from workbench.compare.profile import tracing
from workbench.compare.profile.analysis import profiles, read_profile
from workbench.compare.profile.merge import merged_trace
from workbench.compare.profile.values import Profile as ProfileValues
from workbench.compare.profile.values import RankProfile
from workbench.errors import sentence
from workbench.store.layout import RunPaths
from workbench_widgets.face import Face
from workbench_widgets.options import refuse_extra
from workbench_widgets.run.face import handle_of, run_config


class Profile(Face):
    """A run's latest profile, and a button that makes the next one while the run lives.

    Args:
        run: A ``Run`` from ``wb.launch`` or ``wb.attach``, or its name; the newest run by default.
        steps: Optimizer steps that the button traces.
        memory: Whether it traces allocations, too.

    Raises:
        TypeError: an unknown option.
        UsageError: not a number of steps that can be traced.
    """

    profile = traitlets.Dict().tag(sync=True)
    status = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        run: Any = "last",
        *,
        steps: int = tracing.STEPS,
        memory: bool = False,
        **unknown: object,
    ) -> None:
        refuse_extra(Profile, unknown)
        tracing.request_text(2, steps)  # refuses a number that cannot be
        self.run = handle_of(run)
        self._steps, self._memory = steps, memory
        self._tracing = threading.Lock()
        config = run_config(
            self.run, face="profile.js", transport="auto", refresh_ms=1000, smoothing=0, steps=steps
        )
        super().__init__(config, status=self._state(""))
        self.refresh()

    def refresh(self) -> None:
        """Read the run's latest profile again; says so where it has none."""
        paths = RunPaths(Path(self.run.directory))
        if not profiles(paths):
            self.profile = {}
            return
        try:
            self.profile = _drawn(read_profile(paths))
            self.status = self._state("")
        except (wb.WorkbenchError, OSError) as error:
            self.status = self._state(sentence(error), bad=True)

    def trace(self) -> None:
        """Trace the next steps and show them; what goes wrong is shown in the widget."""
        if not self._tracing.acquire(blocking=False):
            return  # a double click is one trace
        try:
            self.status = self._state(f"Tracing {self._steps} steps …", busy=True)
            tracing.profile(self.run, self._steps, memory=self._memory)
            self.refresh()
        except (wb.WorkbenchError, OSError) as error:
            self.status = self._state(sentence(error), bad=True)
        finally:
            self._tracing.release()

    def _state(self, text: str, *, bad: bool = False, busy: bool = False) -> dict[str, Any]:
        return {"text": text, "bad": bad, "busy": busy, "live": self.run.status.live}

    def _receive(self, kind: str, message: dict[str, Any]) -> None:  # noqa: ARG002
        if kind == "profile":
            threading.Thread(target=self.trace, name="workbench-profile", daemon=True).start()

    def __repr__(self) -> str:
        if not self.profile:
            return f"Profile of {self.run.id!r}: none yet\n{self.status.get('text', '')}".rstrip()
        steps = self.profile["steps"]
        lines = [f"Profile of {self.run.id!r}, steps {steps[0]} to {steps[-1]}, mean of a step"]
        lines += [f"  {rank['says']}" for rank in self.profile["ranks"]]
        lines += [f"  {text}" for text in self.profile["sentences"]]
        return "\n".join(lines)


def _drawn(profile: ProfileValues) -> dict[str, Any]:
    """What the page draws: means, not single steps."""
    merged = merged_trace(profile)
    document = profile.document()
    return {
        "folder": profile.folder.name,
        "steps": document["steps"],
        "ranks": [_rank(*pair) for pair in zip(profile.ranks, document["ranks"], strict=True)],
        "operations": document["operations"],
        "sentences": [
            *profile.sentences(),
            *(f"Rank {rank} has no trace: {why}" for rank, why in profile.problems.items()),
        ],
        "files": [path.name for path in (merged, *profile.traces)],
        "place": str(profile.folder),
    }


def _rank(profile: RankProfile, document: dict[str, Any]) -> dict[str, Any]:
    mean = {name.removesuffix("_seconds"): value for name, value in document["mean"].items()}
    fields = {name: document[name] for name in ("rank", "device", "memory", "stop_seconds")}
    return {**fields, "mean": mean, "says": profile.sentence()}

"""``Export``: a run, recipe or script as the files of another engine, or why it refuses."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import traitlets

import workbench as wb
from workbench.describe import prices
from workbench.engines.exporting import Export as Files
from workbench.engines.exporting import RefusedError, export, slug
from workbench.engines.job import EngineJob
from workbench.engines.limits import ABSENT
from workbench.engines.refusals import ENGINES, RENTING, places, refusals
from workbench.errors import sentence
from workbench_widgets.calculator import Calculator
from workbench_widgets.controls import Field, gpu_field, of_option, select, text
from workbench_widgets.launch.export_choice import LIMITS, MACHINES, OPTIONS, ExportChoice

TITLES = {
    "torchrun": "torchrun, manual",
    "accelerate": "accelerate launch, manual",
    "slurm": "Slurm",
    "skypilot": "SkyPilot",
    "dstack": "dstack",
    "kubeflow": "Kubeflow TrainJob",
    "runpod": "RunPod Instant Cluster",
}
_LABELS = {
    "nodes": ("Machines",),
    "processes_per_node": ("GPUs each",),
    "strategy": ("Strategy", "the run's, or ddp"),
    "region": ("Region", "any"),
    "spot": ("Spot: interruptible",),
    "checkpoints": ("Checkpoints to", "s3://…, volume:NAME"),
    "checkpoint_every": ("Steps between",),
    "restarts": ("Restarts",),
    "max_hours": ("Ends after (hours)", "no limit"),
    "max_usd_per_hour": ("Maximum $ per hour", "no limit"),
    "max_usd": ("Maximum", "no limit"),
    "usd_per_hour": ("$ per hour", "for the maximum $"),
    "max_kwh": ("Maximum", "no limit"),
    "idle_minutes": ("Idle limit (minutes)",),
    "disk_gb": ("Disk each (GB)",),
    "image": ("Container image", "the engine's default"),
    "name": ("Name", "optional"),
}
"""Control -> its label, which the unit follows, and what an empty one means."""
_NOTHING: dict[str, Any] = {"engine": "", "files": [], "next": [], "notes": [], "copies": []}


class Export(Calculator):
    """The files with which another engine starts the same training; reasons where it refuses.

    Args:
        what: A ``Run``, a run's id, a recipe's name or the path of a script.
        store: Store of the runs; default as everywhere.
        **options: A control's first value: ``arguments``, ``engine`` (``"skypilot"``, ``"slurm"``
            …), ``address``, ``checkpoints`` (``"s3://…"``, ``"volume:NAME"`` …), and the options of
            `ExportRequest`: ``strategy``, ``nodes``, ``processes_per_node``, ``gpu``, ``spot`` …

    ``export`` is what the controls say as a value: ``export.write(folder)`` writes it.

    Raises:
        TypeError: an unknown option.
        UsageError: no such run, recipe or script, or a strategy that nothing starts.
    """

    saved = traitlets.Unicode("").tag(sync=True)

    def __init__(self, what: Any = "gpt", *, store: Any = None, **options: Any) -> None:
        if isinstance(what, wb.Run):
            store = what.directory.parent if store is None else store
            what = what.id
        if not isinstance(what, str | os.PathLike):
            raise wb.UsageError(
                "This form exports a run, a recipe or a script, not of type "
                f"{type(what).__name__}. For a Job: wb.export(job, 'slurm')."
            )
        choice = ExportChoice.from_options({"what": str(what), **options})
        self._store = store if isinstance(store, wb.Store) else wb.Store(store)
        self._made: Files | None = None
        super().__init__(choice, face="export.js", groups=_fields(self._targets()))

    @property
    def export(self) -> Files | None:
        """The files of the controls; None while the engine refuses."""
        return self._made

    def save(self, folder: str | Path | None = None) -> list[Path]:
        """Write the files; by default into a folder of the job's name beside the store.

        Raises:
            UsageError: the engine refuses what the controls say.
        """
        if self._made is None:
            raise wb.UsageError("Nothing to save: the engine does not support this request.")
        made = self._made
        where = self._store.root.parent / "exports" / f"{slug(made.job)}-{made.engine}"
        folder = where if folder is None else Path(folder)
        written = made.write(folder)
        self.saved = f"{len(written)} files in {folder}"
        return written

    def _targets(self) -> Sequence[str]:
        return [*wb.recipes.recipes(), *self._store.ids()[:50]]

    def _figure(self) -> dict[str, Any]:
        """The files, or each engine's answer where this one refuses."""
        choice: ExportChoice = self.choice
        self._made = None
        job = choice.request().engine_job(self._store)
        try:
            made = export(job, choice["engine"], address=choice["address"] or None)
        except RefusedError as error:
            return {**self._head(job), **_NOTHING, "refused": _reasons(error.refusals)}
        except wb.WorkbenchError as error:  # one sentence has the reason and the way out
            reason = {"what": "", "reason": str(error), "instead": ""}
            return {**self._head(job), **_NOTHING, "refused": [reason]}
        self._made = made
        return {
            **self._head(job),
            "engine": choice["engine"],
            "files": [{"name": name, "text": body} for name, body in made.files.items()],
            "copies": list(made.copies),
            "next": list(made.next),
            "notes": list(made.notes),
            "refused": [],
        }

    def _head(self, job: EngineJob) -> dict[str, Any]:
        where = f" at {job.provider}" if job.provider else ""
        kind = f"{job.processes_per_node} x {job.gpu or 'CPU'}"
        machines = f"{job.nodes} x {kind}" if job.nodes > 1 else kind
        return {
            "headline": f"{job.name} on {TITLES[self.choice['engine']]}",
            "setting": f"{machines}{' spot' if job.spot else ''}{where}, {job.strategy.name}",
            "engines": [
                {
                    "name": name,
                    "title": TITLES[name],
                    "refused": _reasons(refusals(_without_absent(job, name), name)),
                }
                for name in ENGINES
            ],
            "assumptions": [],
            "sources": sorted({f"{row.source}, {row.date}" for row in _rows(job)}),
        }

    def _receive(self, kind: str, message: dict[str, Any]) -> None:
        """The page's *Save*."""
        if kind != "save":
            super()._receive(kind, message)
            return
        try:
            self.save()
        except (ValueError, OSError) as error:
            self.saved = sentence(error)

    def _change(self, changes: dict[str, Any], token: str = "") -> None:
        self.saved = ""
        super()._change(changes, token)

    def _text(self) -> str:
        """The files as text."""
        figure = self.figure
        if not figure:
            return "Export"
        lines = [figure["headline"], figure["setting"]]
        lines += [
            f"Refused: {refusal['reason']} {refusal['instead']}" for refusal in figure["refused"]
        ]
        lines += [f"Note: {note}" for note in figure["notes"]]
        for file in figure["files"]:
            lines += ["", f"# {file['name']}", file["text"].rstrip("\n")]
        if figure["next"]:
            lines += ["", "Type:", *(f"  {line}" for line in figure["next"])]
        return "\n".join(lines)


def _reasons(refusals: Sequence[Any]) -> list[dict[str, str]]:
    return [
        {"what": refusal.what, "reason": refusal.reason, "instead": refusal.instead}
        for refusal in refusals
    ]


def _without_absent(job: EngineJob, engine: str) -> EngineJob:
    """What an engine has not is hidden when it is chosen, so it does not count in its row."""
    gone: dict[str, Any] = dict.fromkeys(ABSENT.get(engine, ()))
    gone |= {"restarts": 0} if "restarts" in gone else {}
    gone |= {} if engine in RENTING else {"provider": None}
    return replace(job, **gone)


def _rows(job: EngineJob) -> list[Any]:
    return [place for place in places() if job.provider in {None, place.provider}]


def _fields(targets: Sequence[str]) -> list[dict[str, Any]]:
    """Groups of controls in reading order."""
    known_providers = sorted({*prices.providers(), *(place.provider for place in places())})
    target: Field = {
        "name": "what",
        "label": "Run, recipe or script",
        "kind": "search",
        "options": [{"value": name, "text": name} for name in targets],
        "hint": "a run's id, gpt, train.py",
    }
    engines = select("engine", "Engine", ENGINES, TITLES)
    providers = select("provider", "Provider", ("", *known_providers), {"": "wherever"})
    own = {"gpu": gpu_field("GPU", "search", "none: CPU"), "provider": providers}
    machines = [own.get(name) or of_option(OPTIONS[name], *_LABELS[name]) for name in MACHINES]
    machines.append(text("address", "First machine's address", "10.0.0.1"))
    keeping = [{**of_option(OPTIONS[name], *_LABELS[name]), "name": name} for name in LIMITS]
    return [
        {
            "title": "Source and target",
            "open": True,
            "fields": [target, text("arguments", "Arguments"), engines],
        },
        {"title": "Machines", "open": True, "fields": machines},
        {"title": "Checkpoints, limits", "open": True, "fields": keeping},
    ]

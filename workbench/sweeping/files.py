"""The files of a sweep, in ``<store>/.sweeps/NAME/``.

=====================  =======================================================================
file                   content
=====================  =======================================================================
``sweep.json``         `plan.SweepPlan`, written last when a sweep is made
``template/``          a run directory that never starts: the record that trials are made from
``journal.jsonl``      Optuna's journal: values, looks and results of all trials
``controller.json``    who serves the sweep (`schema.ProcessDoc`)
``controller.lock``    held (flock) by the one controller, the only writer of the journal
``controller.log``     what it did and why
``stop``               there while somebody asked for its stop
``end.json``           how it ended: ``{"outcome", "message", "at"}``; gone once it is resumed
``changes.json``       what was another when it was resumed: ``{"changes": [{"trial", "now"}]}``
``forgiven.json``      trials that had failed before its user resumed it: ``{"trials": [0, 2]}``
=====================  =======================================================================

A trial's run says in its record whose trial it is: that is the link between both.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, cast

from workbench.errors import StoreError, UnknownNameError, UsageError
from workbench.store import detached, names
from workbench.store.commands import command_in
from workbench.store.files import read_json, write_json_atomic
from workbench.store.layout import NamedFile, RunPaths
from workbench.store.ownership import check_own_folder
from workbench.store.shapes import fit_as
from workbench.sweeping.plan import SweepPlan

FOLDER = ".sweeps"


class ChangeDoc(TypedDict, total=False):
    """What is another than when the sweep was made, from a trial on."""

    trial: int  # the first that trains so
    now: dict[str, Any]  # of the script's files and the machine, as `provenance.differences`
    words: list[str]  # the same for people; empty: as it was made


class _EndDoc(TypedDict, total=False):
    outcome: str
    message: str
    at: float


class _ChangesDoc(TypedDict, total=False):
    changes: list[ChangeDoc]


@dataclass(frozen=True, slots=True)
class SweepFiles:
    """The paths of one sweep; nothing is made by naming them."""

    root: Path
    """The store."""
    name: str
    """The sweep's folder."""

    @property
    def directory(self) -> Path:
        """The sweep's folder."""
        return self.root / FOLDER / self.name

    plan_file = NamedFile("sweep.json")
    """The plan."""

    @property
    def template(self) -> RunPaths:
        """The record that trials are made from."""
        return RunPaths(self.directory / "template")

    journal = NamedFile("journal.jsonl")
    """Optuna's."""
    controller = NamedFile("controller.json")
    """Who serves the sweep."""
    lock = NamedFile("controller.lock")
    """Held by the controller."""
    log = NamedFile("controller.log")
    """The controller's."""
    stop = NamedFile("stop")
    """The request to stop."""
    end = NamedFile("end.json")
    """How it ended."""
    changes_file = NamedFile("changes.json")
    """What was another when it was resumed."""
    forgiven = NamedFile("forgiven.json")
    """The trials whose failure ends it no more."""

    def plan(self) -> SweepPlan:
        """The plan.

        Raises:
            StoreError: it cannot be read.
        """
        try:
            return SweepPlan.read(read_json(self.plan_file) or {})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StoreError(f"{self.plan_file} is not the plan of a sweep: {error!r}") from error

    def ended(self) -> dict[str, Any] | None:
        """How it ended; None = it has not."""
        document = read_json(self.end)
        return None if document is None else fit_as(_EndDoc, document)

    def tell_end(self, outcome: str, message: str, at: float) -> None:
        """Write how it ended."""
        write_json_atomic(self.end, {"outcome": outcome, "message": message, "at": at})

    def forgiven_trials(self) -> list[int] | None:
        """Those that had failed before it was resumed; None = it was, and they cannot be read."""
        if not self.forgiven.exists():
            return []
        listed = (read_json(self.forgiven) or {}).get("trials")
        numbers = cast("list[object]", listed) if isinstance(listed, list) else [None]
        trials = [number for number in numbers if type(number) is int]
        return trials if len(trials) == len(numbers) else None

    def changes(self) -> list[ChangeDoc]:
        """What was another each time that it was resumed, the first time first."""
        return fit_as(_ChangesDoc, read_json(self.changes_file) or {}).get("changes", [])

    def tell_change(self, change: ChangeDoc) -> None:
        """Add what is another from now on."""
        write_json_atomic(self.changes_file, {"changes": [*self.changes(), change]})

    @property
    def is_served(self) -> bool:
        """Whether its controller is at work."""
        return detached.is_served(self.controller)

    def check_own(self) -> None:
        """Refuse a sweep whose files someone else could have written: it says what is started.

        Raises:
            ForeignRunError: it is not this user's alone.
        """
        check_own_folder(self.directory, "sweep")


def make_folder(root: Path, name: str) -> SweepFiles:
    """Claim the folder of a new sweep; another name's number follows where it is taken.

    Raises:
        StoreError: the store cannot be written.
    """
    base = names.slug(names.check_name(name))
    try:
        (root / FOLDER).mkdir(mode=0o700, parents=True, exist_ok=True)
        for number in range(1, 10_000):
            files = SweepFiles(root, base if number == 1 else f"{base}-{number}")
            try:
                files.directory.mkdir(mode=0o700)
            except FileExistsError:
                continue
            return files
    except OSError as error:
        raise StoreError(f"The store {root} cannot be written: {error}") from error
    raise StoreError(f"{root} has 10,000 sweeps named {base!r}.")


def every_sweep(root: Path) -> list[SweepFiles]:
    """All sweeps of a store, the newest first; also those whose plan cannot be read.

    Raises:
        StoreError: their folder cannot be read.
    """
    try:
        sweeps = [SweepFiles(root, path.name) for path in (root / FOLDER).iterdir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"The sweeps in {root / FOLDER} cannot be read: {error}") from error
    made = [
        sweep_files
        for sweep_files in sweeps
        if names.is_id(sweep_files.name) and sweep_files.plan_file.is_file()
    ]
    return sorted(made, key=_made_at, reverse=True)


def _made_at(files: SweepFiles) -> float:
    """Unix seconds; by its folder where its plan cannot be read."""
    try:
        return float(files.plan().created_at)
    except (StoreError, ValueError, TypeError):
        with contextlib.suppress(OSError):
            return files.directory.stat().st_mtime
        return 0.0


def problem(files: SweepFiles) -> str:
    """Why nothing can be said of a sweep; "" = its plan can be read."""
    try:
        files.plan()
    except StoreError as error:
        return str(error)
    return ""


def find_sweep(root: Path, name: str) -> SweepFiles:
    """The sweep of that name or unique prefix, or the newest for "last". Raises UsageError."""
    sweeps = every_sweep(root)
    if not sweeps:
        raise UsageError(
            f"No sweeps in {root} yet. Start one: "
            f"{command_in(root, 'sweep', 'gpt', '--grid', 'lr=1e-4,3e-4')}"
        )
    fits = (
        [sweep_files for sweep_files in sweeps if not problem(sweep_files)][:1]
        if name == "last"
        else [sweep_files for sweep_files in sweeps if sweep_files.name == name]
    )
    fits = fits or [
        sweep_files for sweep_files in sweeps if name and sweep_files.name.startswith(name)
    ]
    if len(fits) > 1:
        raise UsageError(f"{name!r} fits {', '.join(fit.name for fit in fits)}. Give the name.")
    if not fits:
        raise UnknownNameError.near("sweep", name, [sweep_files.name for sweep_files in sweeps])
    return fits[0]

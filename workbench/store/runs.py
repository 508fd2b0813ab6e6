"""The store: claims new run directories, finds runs by id, prefix, name or "last", lists them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from workbench.errors import RunNotFoundError, StoreError, UnknownNameError, UsageError
from workbench.store import names
from workbench.store.commands import STORE_VARIABLE, command_in, default_root
from workbench.store.files import read_json, read_json_or_why
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord

LAST = names.LAST


def discard(paths: RunPaths) -> None:
    """Take back a directory that was claimed just now, and in which nothing was started."""
    shutil.rmtree(paths.directory, ignore_errors=True)  # follows no link


def _refuse_link(directory: Path) -> None:
    if directory.is_symlink():
        raise StoreError(
            f"{directory.name} in {directory.parent} is a symbolic link, and a run is a folder of "
            "its own. Move it here, or name the store it lies in with --store DIR."
        )


def _one_run(run: object) -> str:
    """What names one run, as text. Raises UsageError: it is a list, a handle, or another thing."""
    text = os.fspath(run) if isinstance(run, str | os.PathLike) else None  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(text, str):
        raise UsageError(
            "Give one run by its id, a unique prefix of it, its name, its folder or 'last', not "
            f"{run!r}."
        )
    return text


class Store:
    """A folder of run directories. Cheap to make; holds nothing but its path."""

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        if root is None:
            self.root = default_root()
        else:
            path = os.path.expanduser(names.check_local(root, "The store"))  # noqa: PTH111  (raises)
            self.root = Path(path).absolute()
        names.check_folder(self.root, "The store", StoreError)

    def __repr__(self) -> str:
        return f"Store({str(self.root)!r})"

    def __fspath__(self) -> str:
        """Its folder: a store stands wherever the path of one does."""
        return str(self.root)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Store) and self.root == other.root

    def __hash__(self) -> int:
        return hash(self.root)

    def create(self, name: str) -> RunPaths:
        """Claim a new run directory for `name` (``mkdir`` is the lock: two callers, two runs).

        Raises:
            UsageError: the name is not allowed.
            StoreError: the store cannot be written.
        """
        name = names.check_name(name)
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            for directory in self._candidates(name):
                paths = RunPaths(directory)
                try:
                    paths.directory.mkdir(mode=0o700)  # logs may hold what only we may see
                except FileExistsError:
                    continue
                try:
                    paths.make_folders()
                except OSError:
                    discard(paths)
                    raise
                return paths
        except OSError as error:
            raise StoreError(
                f"The run store {self.root} cannot be written: {error.strerror or error}. Choose "
                f"another folder with --store DIR or {STORE_VARIABLE}=DIR."
            ) from error
        raise StoreError(f"The run store {self.root} has 100,000 runs named {name!r}.")

    def next_directory(self, name: str) -> Path:
        """The directory that `create` would claim for `name` now; nothing is made."""
        return next(path for path in self._candidates(name) if not path.exists())

    def _candidates(self, name: str) -> Iterator[Path]:
        base = names.slug(names.check_name(name))
        yield self.root / base
        yield from (self.root / f"{base}-{number}" for number in range(2, 100_000))

    def ids(self) -> list[str]:
        """Ids of all runs, newest first (by the time their directory was claimed)."""
        dated = [(self.created(name, fallback), name) for fallback, name in self.folders()]
        runs = [(created, name) for created, name in dated if created is not None]
        return [name for _, name in sorted(runs, reverse=True)]

    def folders(self) -> list[tuple[int, str]]:
        """(ctime in nanoseconds, id) of each folder that may be a run, in no order.

        Raises:
            StoreError: the store cannot be read.
        """
        try:
            with os.scandir(self.root) as entries:
                listed = [entry for entry in entries if names.is_id(entry.name)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._cannot_be_read(error) from error
        dated: list[tuple[int, str]] = []
        for entry in listed:
            try:
                if entry.is_dir(follow_symlinks=False):
                    dated.append((entry.stat(follow_symlinks=False).st_ctime_ns, entry.name))
            except FileNotFoundError:  # deleted since it was listed
                continue
            except OSError as error:
                raise self._cannot_be_read(error) from error
        return dated

    def _cannot_be_read(self, error: OSError) -> StoreError:
        return StoreError(f"The run store {self.root} cannot be read: {error}")

    def created(self, run_id: str, ctime_ns: int) -> float | None:
        """Creation time from run.json; None for a folder that is no run."""
        document, why = read_json_or_why(self.root / run_id / "run.json")
        if document is None:  # a run that cannot be read is listed as such, below its own date
            return None if why is None else ctime_ns / 1e9
        created = document.get("created_at")
        return float(created) if isinstance(created, int | float) else ctime_ns / 1e9

    def _is_run(self, run_id: str) -> bool:
        document, why = read_json_or_why(self.root / run_id / "run.json")
        return document is not None or why is not None

    def locate(self, run: str | os.PathLike[str]) -> RunPaths:
        """What `find` finds, or, of any store, the run whose folder `run` is the path of.

        Raises:
            RunNotFoundError, UsageError, StoreError: as `find`.
        """
        text = _one_run(run)
        own = text == LAST or (names.is_id(text) and self._is_run(text))
        # A link stays one, and what names no user's home is no error.
        folder = Path(os.path.abspath(os.path.expanduser(text)))  # noqa: PTH100, PTH111
        if not own and text and os.path.isfile(folder / "run.json"):  # noqa: PTH113  (any text)
            _refuse_link(folder)
            return RunPaths(folder)
        return self.find(text)

    def find(self, run: str) -> RunPaths:
        """Return the run with that id, unique id prefix or name; "last" is the user's newest one.

        Trials of sweeps and studies, and runs that measured or verified a script, are the last
        where there is no other.

        Raises:
            RunNotFoundError: nothing fits; the message names near misses.
            UsageError: several runs fit.
            StoreError: it is a link to somewhere else.
        """
        run = _one_run(run)
        if names.is_id(run):
            _refuse_link(self.root / run)
        if names.is_id(run) and run != LAST and self._is_run(run):  # older versions let one be so
            return RunPaths(self.root / run)
        ids = self.ids()
        if run == LAST and ids:
            own = (run_id for run_id in ids if not self._is_helper(run_id))
            return RunPaths(self.root / next(own, ids[0]))
        if run == LAST or not ids:
            raise RunNotFoundError(
                f"No runs in {self.root} yet. Start one: {command_in(self.root, 'launch', 'gpt')}. "
                "Or name another store: --store DIR."
            )
        fits = [run_id for run_id in ids if run and run_id.startswith(run)] or [
            run_id for run_id in ids if self._name(run_id) == run
        ]
        if len(fits) > 1:
            raise UsageError(f"{run!r} fits {len(fits)} runs: {', '.join(fits[:6])}. Give the id.")
        if not fits:
            near = UnknownNameError.near("run", run, ids[:50])
            raise RunNotFoundError(f"{near} Store: {self.root}.")
        return RunPaths(self.root / fits[0])

    def _is_helper(self, run_id: str) -> bool:
        return RunRecord.of(read_json(self.root / run_id / "run.json") or {}).is_helper

    def _name(self, run_id: str) -> str | None:
        document = read_json(self.root / run_id / "run.json")
        return document.get("name") if document else None

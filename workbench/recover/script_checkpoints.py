"""Checkpoints that a script wrote its own way, unseen by the hook: found by their content.

They are looked for where the script works and in the folders that its arguments name, if they
were written since the run began. The search is bounded; it opens tables of files, never their
tensors. What other runs wrote there is told apart, see `whose`.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from workbench.recover import contents
from workbench.recover.checkpoints import Checkpoint, given_up, list_checkpoints, newest_first
from workbench.recover.foreign import IdentifiedCheckpoint, candidates, identify
from workbench.recover.saved_step import SavedSteps
from workbench.recover.whose import Owners
from workbench.store.layout import RunPaths
from workbench.store.record import read_run
from workbench.store.run_record import RunRecord

EXPORTED = ".workbench-export.json"
"""Beside a model that was exported, of whichever run: no script wrote that folder."""
_MOST = 200  # checkpoints of one script that are listed
_MOST_NOTES = 3
_MOST_FILES = 20_000  # of one checkpoint that are measured


def every_checkpoint(paths: RunPaths) -> list[Checkpoint]:
    """Those that the run knows of, and those that its script wrote its own way; newest first."""
    run_checkpoints = list_checkpoints(paths)
    return newest_first([*run_checkpoints, *script_checkpoints(paths, run_checkpoints)])


def states_of_script(
    paths: RunPaths, run_checkpoints: list[Checkpoint] | None = None
) -> list[Checkpoint]:
    """What the script wrote its own way and can go on from, newest first.

    Weights alone are a result, not a state to continue from.
    """
    checkpoints = script_checkpoints(paths, run_checkpoints)
    return newest_first(checkpoint for checkpoint in checkpoints if checkpoint.kind != "pretrained")


def notes_on_passed(states: Iterable[Checkpoint], chosen: Checkpoint | None) -> list[str]:
    """A sentence on each state beyond the `chosen` one that is not read, or not surely the run's.

    One that cannot be read does not say its step: what was saved later counts as beyond.
    """
    notes, step, at = list[str](), -1, 0.0
    if chosen is not None:
        step, at = -1 if chosen.step is None else chosen.step, chosen.saved_at or 0.0
    for state in states:
        if state.step is None and state.problem and (state.saved_at or 0.0) > at:
            notes.append(f"Checkpoint {state.name} is skipped: {state.problem}.")
        elif state.step is not None and state.step > step and state.doubt and not state.abandoned:
            notes.append(
                f"{state.path} (step {state.step}) is not taken unless it is named: {state.doubt}."
            )
    return notes[:_MOST_NOTES]


def script_checkpoints(
    paths: RunPaths, run_checkpoints: list[Checkpoint] | None = None
) -> list[Checkpoint]:
    """Those that the script wrote its own way."""
    run = read_run(paths) or RunRecord()
    listed = [
        checkpoint.path
        for checkpoint in (list_checkpoints(paths) if run_checkpoints is None else run_checkpoints)
    ]
    owners = Owners(paths, run)
    search = _Search(paths, owners, run.created_at - 1.0, listed, given_up(paths))
    search.look(_written(paths, owners.places))
    if any(saved.step is not None and not saved.doubt for saved in search.checkpoints.values()):
        search.elsewhere = "its arguments name another folder, which holds checkpoints"
    search.look(_written(paths, [Path(run.working_directory or "/nowhere")], skip_store=True))
    return list(search.checkpoints.values())


class _Search:
    """Looks at candidates, and keeps those that are checkpoints of the run."""

    def __init__(
        self,
        paths: RunPaths,
        owners: Owners,
        since: float,
        listed: Sequence[Path],
        abandoned: Container[tuple[str, float | None]],
    ) -> None:
        self.checkpoints: dict[Path, Checkpoint] = {}
        self.elsewhere = ""  # why a state to continue from is in doubt where it lies
        self._saved_steps = SavedSteps(paths)
        self._owners, self._since, self._listed = owners, since, listed
        self._abandoned = abandoned
        self._seen = set[Path]()

    def look(self, candidates: Iterable[Path]) -> None:
        """Take what is a checkpoint among the first candidates."""
        for path in itertools.islice(candidates, 4 * _MOST):
            inside = any(
                path == folder or folder in path.parents or path in folder.parents
                for folder in self._listed
            )
            if path in self._seen or inside or len(self.checkpoints) >= _MOST:
                continue
            self._seen.add(path)
            checkpoint = self._identified(path)
            if checkpoint is not None:
                self.checkpoints[path] = checkpoint

    def _identified(self, path: Path) -> Checkpoint | None:
        if (path / EXPORTED).is_file():
            return None
        size, newest = contents.measure(path, _MOST_FILES)
        about = None if newest is None or newest < self._since else identify(path)
        if about is None or newest is None:
            return None
        doubt = self._owners.why_not_own(path, about.step, newest)
        if doubt is None:
            return None
        if about.kind != "pretrained" and self._owners.is_outside(path):
            doubt = doubt or self.elsewhere
        if not doubt and self._owners.was_at_work(newest):
            about = replace(about, step=self._saved_steps.step_of(about, newest))
        gone = (str(path), newest) in self._abandoned
        return replace(of_path(path, about, size, newest), abandoned=gone, doubt=doubt)


def of_path(
    path: Path,
    about: IdentifiedCheckpoint,
    size: int,
    newest: float | None,
) -> Checkpoint:
    """A checkpoint of the script, as its content shows it."""
    return Checkpoint(
        path=path,
        step=about.step,
        kind=about.kind,
        bytes=size,
        saved_at=newest,
        sealed=False,
        problem=about.problem or ("" if size else "it is empty"),
        world_size=about.world_size,
        by_script=True,
    )


def named_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint that someone named; of unknown content, it has no step."""
    about = identify(path) or IdentifiedCheckpoint(kind="unknown", step=None)
    return replace(
        of_path(path, about, *contents.measure(path, _MOST_FILES)), problem=about.problem
    )


def _written(
    paths: RunPaths, places: Iterable[Path], *, skip_store: bool = False
) -> Iterator[Path]:
    """What may be checkpoints of the script in these places, and in the run's own folder."""
    for place in dict.fromkeys([*places, paths.checkpoints]):
        if place.is_file():
            yield place
        elif place.is_dir():
            for candidate in candidates(place):
                if not skip_store or paths.directory.parent not in candidate.parents:
                    yield candidate

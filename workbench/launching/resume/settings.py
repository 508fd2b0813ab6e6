"""What a run was launched with, as a launch takes it again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from workbench.launching.prepare.moved import recorded_folder
from workbench.launching.prepare.options import LaunchOptions
from workbench.launching.prepare.targets import target_of
from workbench.launching.resume.resumable import latest_words, startable_record
from workbench.launching.resume.resume import refuse_engine
from workbench.launching.resume.run_options import options_of
from workbench.launching.start.launch_spec import check_not_redacted
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The settings of a run's latest attempt."""

    paths: RunPaths
    """Its directory."""
    run: RunRecord
    """Its record."""
    target: str
    """Recipe, script or module, as a launch takes it."""
    arguments: tuple[str, ...]
    """The script's own, without those that the layout adds."""
    options: LaunchOptions
    """The others; the name is None where it was made of script and strategy."""
    folder: Path
    """Where it was started: its arguments may name files from there."""


def settings_of(paths: RunPaths) -> RunSettings:
    """Read them from a run's directory.

    Raises:
        ForeignRunError: it is another user's, others can write to it, or its record is not ours.
        UsageError: it cannot be started from here any more, or its record lacks something.
    """
    run = startable_record(paths)
    refuse_engine(run)
    words = latest_words(paths, run)
    check_not_redacted(run, words)
    return RunSettings(
        paths=paths,
        run=run,
        target=target_of(run),
        arguments=tuple(words[len(run.layout_arguments) :]),
        options=options_of(paths, run),
        folder=recorded_folder(run),
    )

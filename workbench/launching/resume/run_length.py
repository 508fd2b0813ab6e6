"""How long a resumed run is to train: its new arguments say it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from workbench.errors import WorkbenchError
from workbench.launching.prepare.build_request import build_request
from workbench.launching.prepare.targets import target_of
from workbench.launching.resume.run_options import options_of
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord


def with_length(paths: RunPaths, run: RunRecord, words: Sequence[str]) -> RunRecord:
    """The record with the steps and the time limit that the script's arguments `words` ask for.

    Unchanged where they do not say it, or cannot be read here.
    """
    own = words[len(run.layout_arguments) :]
    try:
        folder = Path(run.working_directory)
        request = build_request(target_of(run), own, options_of(paths, run), folder)
    except WorkbenchError:  # only a fresh launch would be refused so
        return run
    return replace(run, steps_total=request.steps_total, seconds_total=request.seconds_total)

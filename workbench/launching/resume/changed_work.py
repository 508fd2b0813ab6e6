"""What a run resumed with other arguments is to do: its length, its batch and what is predicted."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from workbench.errors import WorkbenchError
from workbench.launching.prepare.build_request import build_request
from workbench.launching.prepare.targets import target_of
from workbench.launching.resume.run_options import options_of
from workbench.launching.start.start import recorded_work
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord

_LENGTH = ("steps_total", "seconds_total")


def with_work(
    paths: RunPaths, run: RunRecord, words: Sequence[str], *, predict_again: bool = False
) -> RunRecord:
    """The record with what the script's arguments `words` ask for.

    `predict_again`: of the same work something else is predicted.

    Steps of before were of other work, where it is another one: they are not what is predicted.
    Unchanged where the arguments cannot be read here.
    """
    own, folder = words[len(run.layout_arguments) :], Path(run.working_directory)
    try:
        request = build_request(target_of(run), own, options_of(paths, run), folder)
    except WorkbenchError:  # only a fresh launch would be refused so
        return run
    work = json.loads(json.dumps(recorded_work(request)))  # as a record is read
    if work["workload"] == run.workload:
        names = (*_LENGTH, "predicted") if predict_again else _LENGTH
        return replace(run, **{name: work[name] for name in names})
    now, tokens = time.time(), run.tokens_per_step
    before = [*run.tokens_before]
    if work["tokens_per_step"] != tokens:
        before.append({"until": now, "tokens_per_step": tokens})
    return replace(run, **work, work_since=now, tokens_before=before)

"""A script that loads its own latest checkpoint in an attempt that was to begin before it.

The supervisor could not know: it has put away the lines of all steps beyond the attempt's first
one, as ``rank-N.lost.ATTEMPT`` and ``rank-N.states.lost.ATTEMPT``. The rank finds there at which
step the state was saved that it has loaded, brings its lines up to that step back, and counts on.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from typing import Any

from .writers import json_lines, open_lines

_STATES = ".states.lost."


def has_states(folder: str) -> bool:
    """Whether the metrics `folder` has states that an earlier attempt saved, now put away."""
    return any(_STATES in name for name in os.listdir(folder))


def states(folder: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Attempt and line of each of them, as any rank saved it; the newest first."""
    names = [name for name in os.listdir(folder) if _STATES in name]
    for name in sorted(names, key=_attempt, reverse=True):
        for line in reversed(list(json_lines(os.path.join(folder, name)))):
            yield _attempt(name), line


def go_on(recorder: Any, attempt: int, step: int) -> None:
    """The training stands at `step`, whose state was saved in `attempt`: count on from there.

    The supervisor reads where the rank began once it sees a line, so that is written first.
    """
    os.environ["WORKBENCH_FIRST_STEP"] = str(step)
    recorder.steps = step
    recorder.note(attempt_first_step=step)
    folder, rank = os.path.join(recorder.folder, "metrics"), f"rank-{recorder.rank}"
    # Other ranks look for the states of this one, so these stay where they are too.
    for stream in _streams(folder, rank):
        with contextlib.suppress(OSError):
            _bring_back(folder, stream, attempt, step, keep=stream.endswith(".states"))


def _streams(folder: str, rank: str) -> list[str]:
    """``rank-0`` and ``rank-0.states`` of the rank's files that have been put away; steps last."""
    names = (name.rpartition(".lost.")[0] for name in os.listdir(folder))
    return sorted({name for name in names if name.split(".")[0] == rank}, reverse=True)


def _bring_back(folder: str, stream: str, attempt: int, step: int, *, keep: bool) -> None:
    """Append what was put away up to `step` to the file that it came from.

    Of the attempt that saved the state, or the latest one before that wrote such lines.
    """
    names = [name for name in os.listdir(folder) if name.rpartition(".lost.")[0] == stream]
    latest = max((name for name in names if _attempt(name) <= attempt), key=_attempt, default=None)
    if latest is None:
        return
    path = os.path.join(folder, latest)
    end = _end_of(path, step)
    if not end:
        return
    handle = open_lines(os.path.join(folder, f"{stream}.jsonl"))
    with open(path, "rb") as file, open(handle, "ab") as lines:
        left = end
        while data := file.read(min(left, 1 << 20)):
            lines.write(data)
            left -= len(data)
        if not keep:
            _keep_remainder(path, file)


def _keep_remainder(path: str, file: Any) -> None:
    """Leave in `path` what `file` has not read yet; no file where that is nothing."""
    temporary = f"{path}.tmp"
    with open(temporary, "wb") as output:
        shutil.copyfileobj(file, output)
        size = output.tell()
    os.replace(temporary, path)
    if not size:
        os.unlink(path)


def _end_of(path: str, step: int) -> int:
    """Where the last line of a step up to `step` ends."""
    position = end = 0
    with open(path, "rb") as file:
        for text in file:
            position += len(text)
            with contextlib.suppress(ValueError, TypeError, KeyError):
                if json.loads(text)["step"] <= step:
                    end = position
    return end


def _attempt(name: str) -> int:
    number = name.rpartition(".")[2]
    return int(number) if number.isdecimal() else 0

"""The commit and the changes of the repository that a script lies in.

A repository's own configuration can make git start programs: hooks, file monitors, filters, diff
drivers, a fetch of what is missing. None of them is started: this is a look at files, beside a
launch, that ends within a time limit. Git itself refuses the repository of another user.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MOST_DIFF_BYTES = 2 << 20
_MOST_ANSWER_BYTES = 4 << 20  # of names: a huge repository has more than anyone reads
_COMMIT_DIGITS = 20  # of 40: without doubt one commit, and not the shape of an old W&B key
_HARMLESS = (
    *("core.fsmonitor=", "core.hooksPath=/dev/null", "core.pager=cat", "protocol.allow=never"),
    *("diff.external=", "core.attributesFile=/dev/null", "submodule.recurse=false"),
)
_DIFF = (
    *("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames"),
    *("--no-relative", "--abbrev=20", "--src-prefix=a/", "--dst-prefix=b/"),
    *("--ignore-submodules=dirty", "--submodule=short"),
    *("HEAD", "--"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """A repository as it was at one moment."""

    folder: Path
    """Its top folder."""
    commit: str
    """The commit that is checked out, its first 20 digits."""
    diff: bytes | None = None
    """Changes of tracked files since then; None = they were too large, or git took too long."""
    diff_sha256: str | None = None
    """Of all of `diff`; None as there, and where nothing was changed."""
    tracked: frozenset[Path] = frozenset()
    """The files that were asked about and that git keeps."""
    notes: tuple[str, ...] = field(default=())
    """What is missing, and why."""


def checkout(folder: Path, files: Collection[Path], seconds: float) -> Checkout | None:
    """The repository that `folder` lies in; None = there is none, it has no commit, or no git."""
    git, deadline = shutil.which("git"), time.monotonic() + seconds
    if git is None:
        return None
    names = _ask(git, folder, ("rev-parse", "--show-toplevel"), deadline)
    short = ("rev-parse", "--verify", "--quiet", f"--short={_COMMIT_DIGITS}", "HEAD")
    head = None if names is None else _ask(git, folder, short, deadline)
    if names is None or head is None:
        return None
    top = Path(os.fsdecode(names).rstrip("\n"))
    if not folder.resolve().is_relative_to(top):  # core.worktree leads elsewhere
        return None
    inside = [file for file in files if file.resolve().is_relative_to(top)]  # git refuses others
    listed = ("ls-files", "-z", "--full-name", "--", *(f":(literal){file}" for file in inside))
    tracked = (_ask(git, folder, listed, deadline) if inside else None) or b""
    diff = _ask(git, top, _DIFF, deadline, MOST_DIFF_BYTES, filters=_filters(git, top, deadline))
    late = time.monotonic() >= deadline
    why = "git took too long" if late else f"they are larger than {MOST_DIFF_BYTES >> 20} MiB"
    return Checkout(
        folder=top,
        commit=head.decode("ascii", "replace").strip(),
        diff=diff,
        diff_sha256=hashlib.sha256(diff).hexdigest() if diff else None,
        tracked=frozenset(top / os.fsdecode(name) for name in tracked.split(b"\0") if name),
        notes=(f"Changes since the commit are not kept: {why}.",) if diff is None else (),
    )


def _filters(git: str, folder: Path, deadline: float) -> list[str]:
    """Settings without which the repository's filters (``clean``, ``process``) would be started."""
    command = (
        "config",
        "-z",
        "--name-only",
        "--get-regexp",
        r"^filter\..*\.(clean|process|required)$",
    )
    names = (_ask(git, folder, command, deadline) or b"").decode("utf-8", "replace").split("\0")
    off = [f"{name}={'false' if name.endswith('.required') else ''}" for name in names if name]
    return [part for setting in off for part in ("-c", setting)]


def _ask(
    git: str,
    folder: Path,
    words: Sequence[str],
    deadline: float,
    most_bytes: int = _MOST_ANSWER_BYTES,
    *,
    filters: Sequence[str] = (),
) -> bytes | None:
    """What git answers; None where it refuses, answers too much, or not in time."""
    settings = [part for setting in _HARMLESS for part in ("-c", setting)]
    left = deadline - time.monotonic()
    if left <= 0:
        return None
    try:
        process = subprocess.Popen(
            [git, "--no-pager", *settings, *filters, *words],
            cwd=folder,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except (OSError, ValueError):
        return None
    timer = threading.Timer(left, process.kill)
    timer.start()
    try:
        with process:
            assert process.stdout is not None
            answer = process.stdout.read(most_bytes + 1)
            if len(answer) > most_bytes:
                process.kill()
    finally:
        timer.cancel()
    return answer if process.returncode == 0 and len(answer) <= most_bytes else None


def _environment() -> dict[str, str]:
    """Nothing that leads git to another repository, or makes it start or ask anything."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return own | {
        "GIT_OPTIONAL_LOCKS": "0",  # the user's own git may be at work there
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "LC_ALL": "C",
    }

"""``python -m workbench.observe.trackers RUN_DIRECTORY --to NAME [--folder F] [--follow]``."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from pathlib import Path

from workbench.errors import UsageError, WorkbenchError
from workbench.observe import trackers
from workbench.store.layout import RunPaths

_NICE = 10  # training comes first on a busy host


def main() -> int:
    """Feed one tracker; prints one JSON object, or with ``--follow`` writes only the log."""
    parser = argparse.ArgumentParser(prog="python -m workbench.observe.trackers")
    parser.add_argument("run_directory", type=Path)
    parser.add_argument("--to", required=True, help=", ".join(trackers.names()))
    parser.add_argument("--folder", type=Path, help="default: trackers/NAME in the run directory")
    parser.add_argument("--follow", action="store_true", help="until the run has ended")
    arguments = parser.parse_args()
    paths = RunPaths(arguments.run_directory.expanduser().absolute())
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    if arguments.follow and paths.logs.is_dir():
        _write_only_the_log(trackers.log_path(paths, arguments.to))
    try:
        progress = trackers.feed(
            paths, arguments.to, follow=arguments.follow, folder=arguments.folder
        )
    except WorkbenchError as error:
        print(error, file=sys.stderr)  # noqa: T201  (a command's own output)
        return 2 if isinstance(error, UsageError) else 1
    from workbench.observe.trackers.feeding import describe  # noqa: PLC0415

    print(json.dumps(describe(progress, paths)))  # noqa: T201
    return 0


def _write_only_the_log(path: Path) -> None:
    """What the trackers' packages print goes to the log, whoever started us."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        os.close(handle)


if __name__ == "__main__":
    sys.exit(main())

"""The commands that messages tell people to type, with the store that they act on."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from pathlib import Path

from workbench.errors import WorkbenchError
from workbench.store import names

STORE_VARIABLE = "WORKBENCH_STORE"


def default_root() -> Path:
    """``$WORKBENCH_STORE``, else ``./runs``: visible, so that Jupyter can serve it."""
    root = names.check_local(os.environ.get(STORE_VARIABLE) or "runs", STORE_VARIABLE)
    return Path(os.path.expanduser(root)).absolute()  # noqa: PTH111  (pathlib's raises)


def command_in(root: Path, *words: str) -> str:
    """``workbench WORDS`` to be typed as it stands, with the store `root` unless it is the usual.

    >>> command_in(Path("/my runs"), "stop", "gpt-ddp")
    "workbench stop gpt-ddp --store '/my runs'"
    """
    return shlex.join(["workbench", *words, *_store_option(root)])


def command_for(run: Path, verb: str, *options: str) -> str:
    """``workbench VERB RUN OPTIONS`` for the run in the folder `run`.

    >>> command_for(Path("/my runs/gpt-ddp"), "logs", "--tail", "40")
    "workbench logs gpt-ddp --tail 40 --store '/my runs'"
    """
    return command_in(run.parent, verb, run.name, *options)


def _store_option(root: Path) -> list[str]:
    """``--store ROOT`` as words; none where a command finds that store by itself."""
    usual: Path | None = None
    with suppress(WorkbenchError):
        usual = default_root()
    return [] if root == usual else ["--store", str(root)]

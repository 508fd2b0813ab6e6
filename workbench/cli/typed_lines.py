"""Commands as someone types them."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path

from workbench.errors import WorkbenchError
from workbench.store.runs import default_root


def typed(root: Path, *words: str) -> str:
    """``workbench WORDS`` to be typed as it stands, with the store `root` unless it is the usual.

    >>> typed(Path("/my runs"), "stop", "gpt-ddp")
    "workbench stop gpt-ddp --store '/my runs'"
    """
    usual: Path | None = None
    with suppress(WorkbenchError):
        usual = default_root()
    where = [] if root == usual else ["--store", str(root)]
    return shlex.join(["workbench", *words, *where])

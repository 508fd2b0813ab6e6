"""A store that an earlier version wrote, as a fixture.

`tests/data/store-2026-11-23.tar.xz` holds real runs of two ranks on CPU with ddp, written by the code
at commit 0221e88: ``finished`` (the recipe gpt, six steps, one checkpoint), ``failed`` (``line.py``,
which raised in step 5) and ``stopped`` (gpt, stopped at step 18 with a checkpoint). The paths of the
machine stand as ``@NAME@`` in its text files; `old_store` puts those of this machine there. Never
renew it: a change of the record is right when this test passes without a change of the data.
"""

from __future__ import annotations

import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import workbench as wb
from workbench.store import processes

ARCHIVE = Path(__file__).parent / "data" / "store-2026-11-23.tar.xz"
BINARY = {".distcp", ".metadata", ".stack", ".pulse"}


@pytest.fixture
def old_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The runs, as if they had been copied from another machine; this user's key is a new one."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    project = tmp_path / "project"
    with tarfile.open(ARCHIVE) as archive:
        how = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(project, **how)
    places = {
        "@PROJECT@": str(project),
        "@PYTHON@": sys.executable,
        "@PACKAGES@": sysconfig.get_path("purelib"),
        "@WORKBENCH@": str(Path(wb.__file__).parent),
        "@PYTHON_HOME@": sys.base_prefix,
    }
    for path in project.rglob("*"):
        if path.is_file() and not {path.suffix, path.name} & BINARY:
            text = path.read_text(encoding="utf-8")
            for name, place in places.items():
                text = text.replace(name, place)
            path.write_text(text, encoding="utf-8")
    root = project / "runs"
    yield root
    for name in wb.Store(root).ids():
        for process in processes.find_marked(wb.attach(name, root).document.get("marker")):
            processes.send_signal(process, 9)

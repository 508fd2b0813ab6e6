"""What takes long is told, and credentials that are renewed are taken up."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.conftest import BUCKET, S3
from workbench.errors import StorageError
from workbench.recover.checkpoints import Checkpoint
from workbench.storage import checking
from workbench.storage.push import push
from workbench.storage.remote import Remote
from workbench.store.layout import RunPaths


def test_a_push_tells_that_it_goes_on_while_it_reads_a_checkpoint(
    made: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, reading = list[str](), list[str]()

    def slow(checkpoint: Checkpoint) -> str:
        before = len(told)
        while len(told) < before + 3:
            time.sleep(0.01)
        reading.append(checkpoint.name)
        return ""

    monkeypatch.setattr(checking, "verify", slow)
    monkeypatch.setattr(checking, "_TELL_SECONDS", 0.01)
    tell: Callable[[int, int, str], None] = lambda _done, _all, what: told.append(what)  # noqa: E731
    pushed = push(made, str(tmp_path / "volume"), on_progress=tell)
    assert reading == pushed.checkpoints
    assert reading[0] in told


def test_credentials_that_are_renewed_are_read_again(s3: S3) -> None:
    Remote(f"{BUCKET}/runs").write("a", b"1")
    there = Remote(f"{BUCKET}/runs")  # from the second on, fsspec keeps it
    there.write("a", b"1")
    assert Remote(there.url)._files is there._files
    s3.faults({"method": "PUT", "in": "/pods/", "times": 1, "do": 403})
    with pytest.raises(StorageError, match="access is refused"):
        there.write("a", b"2")
    again = Remote(there.url)
    assert again._files is not there._files
    again.write("a", b"3")
    assert again.read("a", 10) == b"3"

"""Pushes of one run beside and after each other: no copy names what is gone, nothing stays behind."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from pathlib import Path

import pytest

from tests.storage.conftest import save
from workbench.errors import StorageError
from workbench.launching.resume.arrival import pull
from workbench.recover.checkpoints import list_checkpoints, verify
from workbench.storage.manifest import RemoteRun, read_remote_run
from workbench.storage.push import push
from workbench.storage.remote import Remote, _written_at
from workbench.store.layout import RunPaths
from workbench.store.runs import Store


def copy_of(url: str) -> tuple[RemoteRun, set[str]]:
    """The manifest, and the pieces that lie there."""
    pushed = read_remote_run(Remote(f"{url}/gpt-2"))
    assert pushed is not None
    return pushed, {piece.name for piece in (Path(url) / "gpt-2" / "pieces").iterdir()}


def test_a_push_by_hand_beside_a_mirror_leaves_a_whole_copy(made: RunPaths, tmp_path: Path) -> None:
    url, mirrored = str(tmp_path / "volume"), list[int]()
    for step in (30, 40, 50):
        save(made, step, size=1000)
        push(made, url)

    def mirror(*_progress: object) -> None:
        if not mirrored:
            mirrored.append(1)
            save(made, 60, size=1000)
            push(made, url)

    by_hand = push(made, url, checkpoints="all", on_progress=mirror)
    assert len(by_hand.checkpoints) == 6
    pushed, there = copy_of(url)
    assert pushed.pieces <= there
    assert len(pull(f"{url}/gpt-2", Store(tmp_path / "there")).checkpoints) == 6


def test_a_copy_that_never_stands_still_is_said(made: RunPaths, tmp_path: Path) -> None:
    url = str(tmp_path / "volume")

    def other(*_progress: object) -> None:
        push(made, url)

    with pytest.raises(StorageError, match="others push there"):
        push(made, url, on_progress=other)


def test_what_was_asked_for_stays_asked_for(made: RunPaths, tmp_path: Path) -> None:
    url = str(tmp_path / "volume")
    assert push(made, url).checkpoints == ["step-00000020"]
    assert len(push(made, url, checkpoints="all").checkpoints) == 2
    save(made, 30, size=1000)
    for _ in range(3):  # a mirror's turns
        assert len(push(made, url).checkpoints) == 3
    assert push(made, url, checkpoints="none").checkpoints == []
    assert push(made, url).checkpoints == ["step-00000030"]
    assert push(made, url, checkpoints="newest").checkpoints == ["step-00000030"]
    assert "which" not in copy_of(url)[0].document()


def test_pieces_of_pushes_that_failed_go_in_time(
    made: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, log = str(tmp_path / "volume"), made.logs / "rank-0.log"
    push(made, url)
    with monkeypatch.context() as patch:

        def refused(*_what: object) -> None:
            raise StorageError("no line")

        patch.setattr("workbench.storage.push.write_remote_run", refused)
        for number in range(3):
            log.write_text(f"said {number}\n")
            with pytest.raises(StorageError):
                push(made, url)
    log.write_text("said at last\n")
    push(made, url)
    pushed, there = copy_of(url)
    left = there - pushed.pieces - set(pushed.before)
    assert left, "they may be of a push that is under way"
    day_ago = time.time() - 2 * 24 * 3600
    for piece in (Path(url) / "gpt-2" / "pieces").iterdir():
        os.utime(piece, (day_ago, day_ago))
    log.write_text("said more\n")
    push(made, url)
    pushed, there = copy_of(url)
    assert there == pushed.pieces | set(pushed.before)


def test_each_kind_of_store_tells_when_a_piece_was_written() -> None:
    told = "2026-01-02T03:04:05Z"
    assert _written_at({"updated": told}) == _written_at({"mtime": 1767323045.0}) == 1767323045.0
    assert _written_at({"size": 5}) is None


def test_a_copy_keeps_its_checkpoint_where_the_script_removes_the_new_one_meanwhile(
    made: RunPaths, tmp_path: Path
) -> None:
    """As a script with --keep-last 1 does whose checkpoints come faster than they are sent."""
    url = str(tmp_path / "volume")
    push(made, url)
    for step in (10, 20):
        shutil.rmtree(made.checkpoints / f"step-000000{step}")
    newest = save(made, 30)

    def removes(_done: int, _total: int, path: str) -> None:
        if "step-00000030" in path:
            shutil.rmtree(newest, ignore_errors=True)

    pushed = push(made, url, on_progress=removes)
    assert pushed.checkpoints == ["step-00000020"]
    assert pushed.step == 20
    assert "step-00000030 is left out" in pushed.notes[0]
    assert "step-00000020 of the push before stays there" in pushed.notes[1]
    assert push(made, url).checkpoints == ["step-00000020"], "nor does it go later"
    pulled = RunPaths(pull(f"{url}/gpt-2", Store(tmp_path / "there")).directory)
    assert [verify(saved) for saved in list_checkpoints(pulled)] == [""]
    assert push(made, url, checkpoints="none").checkpoints == [], "as was asked"


def test_what_another_key_signed_there_is_not_taken_over(made: RunPaths, tmp_path: Path) -> None:
    url = str(tmp_path / "volume")
    push(made, url)
    shutil.rmtree(made.checkpoints)
    place = tmp_path / "volume" / "gpt-2" / "manifest.json"
    document = json.loads(place.read_text())
    log = next(file for file in document["files"] if file["path"] == "logs/rank-0.log")
    own, other = log["pieces"], b"evil\n"
    log["pieces"] = [[hashlib.sha256(other).hexdigest(), len(other)]]
    (place.parent / "pieces" / log["pieces"][0][0]).write_bytes(other)
    place.write_text(json.dumps(document))
    pushed = push(made, url)
    assert pushed.checkpoints == []
    files = {file.path: file for file in copy_of(url)[0].files}
    assert files["logs/rank-0.log"].pieces == tuple(map(tuple, own))

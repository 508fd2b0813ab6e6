"""Which runs are listed, and in what order; deleting, and what is never deleted."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

import workbench as wb
from tests.compare.made_runs import make_run
from workbench.compare import deletion, index
from workbench.compare.filters import choose, conditions
from workbench.observe.rows import COLUMNS
from workbench.storage.mirror_state import mirror_lock
from workbench.store import processes
from workbench.store.detached import lock_file
from workbench.store.files import write_json_atomic
from workbench.store.labels import change_labels
from workbench.store.layout import RunPaths


@pytest.fixture
def store(tmp_path: Path) -> wb.Store:
    root = tmp_path / "runs"
    make_run(root, "good", floor=1.0)
    make_run(root, "bad", floor=3.0, outcome="failed", age=1)
    make_run(root, "mute", steps=1, age=2, strategy_name="fsdp", tokens_per_step=None)
    change_labels(make_run(root, "old", age=3), archived=True)
    change_labels(wb.Store(root).find("bad"), add=["lr", "base"])
    return wb.Store(root)


def ids(store: wb.Store, **wish: object) -> str:
    return " ".join(one["run"] for one in choose(index.table(store), **wish))


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        ({}, "mute bad good"),
        ({"archived": True}, "old mute bad good"),
        ({"where": "archived=yes"}, "old"),
        ({"where": "outcome=failed"}, "bad"),
        ({"where": "outcome!=failed"}, "mute good"),
        ({"where": "strategy=DDP loss<2"}, "good"),
        ({"where": "loss>=2 steps>100"}, "bad"),
        ({"where": "name~'the g'"}, "good"),
        ({"where": "tag=lr"}, "bad"),
        ({"where": "tag!=lr"}, "mute good"),
        ({"where": "tags=n/a"}, "mute good"),
        ({"where": "ranks=2.0", "tag": "base"}, "bad"),
        ({"where": "tokens>0"}, "bad good"),
        ({"sort": "loss_last"}, "good bad mute"),
        ({"sort": "-loss"}, "mute bad good"),
        ({"sort": "-tokens"}, "bad good mute"),
        ({"sort": "name"}, "bad good mute"),
    ],
)
def test_chosen_and_ordered(store: wb.Store, wish: dict, expected: str) -> None:
    assert ids(store, **wish) == expected


@pytest.mark.parametrize(("sort", "expected"), [("loss", "abc"), ("-loss_best", "cba")])
def test_a_loss_that_was_nan_is_behind_all_others(sort: str, expected: str) -> None:
    rows = [
        {"run": "c", "loss_last": 0.1, "loss_best": 0.1, "nonfinite_step": 7},
        {"run": "a", "loss_last": 2.0, "loss_best": 1.0, "nonfinite_step": None},
        {"run": "b", "loss_last": 9.0, "loss_best": 9.0, "nonfinite_step": None},
    ]
    rows = [row | {"archived": False} for row in rows]
    assert "".join(row["run"] for row in choose(rows, sort=sort)) == expected


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("strategy", "is not a condition"),
        ("__import__('os')", "is not a condition"),
        ("loss<two", "is not a number"),
        ("name='open", "Close the quote"),
        ("los<2", "Did you mean loss"),
    ],
)
def test_what_cannot_be_read_is_refused(store: wb.Store, where: str, message: str) -> None:
    with pytest.raises(wb.UsageError, match=message):
        ids(store, where=where)
    with pytest.raises(wb.UnknownNameError):
        ids(store, sort="nothing")


def test_deleting_frees_what_it_says(store: wb.Store, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("kept")
    paths = store.find("bad")
    (paths.checkpoints / "step-9").mkdir()
    (paths.checkpoints / "step-9" / "model").write_bytes(b"x" * 100_000)
    (paths.checkpoints / "link").symlink_to(outside)
    (paths.directory / "file-link").symlink_to(outside / "precious")
    freed = deletion.delete(store, "bad")
    assert freed.checkpoints == 2
    assert 100_000 < freed.bytes < 400_000
    assert (outside / "precious").read_text() == "kept"
    assert ids(store) == "mute good"
    assert sorted(path.name for path in store.root.iterdir()) == [
        ".index.sqlite",
        "good",
        "mute",
        "old",
    ]


def test_what_an_interrupted_deletion_left_goes_with_the_next(store: wb.Store) -> None:
    trash = store.root / deletion.TRASH
    for name in ("gone-0123abcd", "my-notes"):
        (trash / name).mkdir(parents=True)
        (trash / name / "file").write_text("x")
    deletion.delete(store, "good")
    assert [path.name for path in trash.iterdir()] == ["my-notes"]  # nothing of ours: kept


def test_what_is_never_deleted(store: wb.Store, tmp_path: Path) -> None:
    for name in ("goo", "last", "the good"):  # a prefix, the newest, a name
        with pytest.raises(wb.UsageError, match="give its full id"):
            deletion.delete(store, name)
    for name in ("..", "../runs/good", ".", "", "good/../bad", "no-such-run"):
        with pytest.raises(wb.RunNotFoundError):
            deletion.delete(store, name)
    (store.root / "link").symlink_to(store.root / "good")
    with pytest.raises(wb.StoreError, match="symbolic link"):
        deletion.delete(store, "link")
    (store.root / "folder").mkdir()
    with pytest.raises(wb.RunNotFoundError):
        deletion.delete(store, "folder")
    (store.root / deletion.TRASH).symlink_to(tmp_path)
    with pytest.raises(wb.StoreError, match="cannot be deleted"):
        deletion.delete(store, "good")
    assert ids(store) == "mute bad good"


def test_a_run_with_a_living_process_stays(store: wb.Store) -> None:
    import subprocess
    import sys

    environment = {"WORKBENCH_RUN_ID": "made-good", "PATH": "/usr/bin:/bin"}
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(600)"],
        env=environment,
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        assert processes.find_marked("made-good")
        with pytest.raises(wb.UsageError, match="Stop it first"):
            deletion.delete(store, "good")
    finally:
        child.kill()
        child.communicate()
    assert deletion.delete(store, "good").run == "good"


def test_a_run_whose_mirror_still_sends_stays(store: wb.Store) -> None:
    lock = lock_file(mirror_lock(store.find("good")))
    assert lock is not None
    with pytest.raises(wb.UsageError, match="mirror of good still sends"):
        deletion.delete(store, "good")
    os.close(lock)
    assert deletion.delete(store, "good").run == "good"


def test_a_run_that_is_resumed_while_its_files_are_counted_stays(
    store: wb.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a network volume that takes a while."""
    real = deletion.size

    def resumed_meanwhile(paths: RunPaths) -> deletion.Size:
        paths.exit.unlink()
        supervisor = processes.identify(os.getpid())
        state = {"phase": "starting", "supervisor": supervisor, "heartbeat": time.time()}
        write_json_atomic(paths.state, state)
        return real(paths)

    monkeypatch.setattr(deletion, "size", resumed_meanwhile)
    with pytest.raises(wb.UsageError, match="good is starting"):
        deletion.delete(store, "good")
    assert store.find("good").run.exists()


def test_every_column_can_be_asked_for() -> None:
    for name in COLUMNS:
        assert conditions(f"{name}=1")[0].field == name


def test_another_deletion_may_empty_the_trash_meanwhile(
    store: wb.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.rmtree

    def raced(path: Path, *, ignore_errors: bool = False) -> None:
        real(path, ignore_errors=True)
        if not ignore_errors:
            raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(deletion.shutil, "rmtree", raced)
    deletion.delete(store, "bad")
    assert not (store.root / "bad").exists()

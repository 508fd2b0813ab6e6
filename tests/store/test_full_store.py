"""A store without room: a launch is refused in a sentence and leaves nothing behind."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import workbench as wb
from tests.compare.made_runs import make_run
from tests.pages.test_live_runs import watched
from workbench.launching.start import start
from workbench.store.files import reserve
from workbench.store.layout import RunPaths
from workbench.store.status import read_status

Mount = Callable[[str], Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """A small file system in memory."""
    place, made = tmp_path / "disk", list[Path]()

    def mount_small(options: str) -> Path:
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        if shutil.which("mount") is None or subprocess.run(command, check=False).returncode:
            pytest.skip("no file system can be mounted here")
        made.append(place)
        return place

    yield mount_small
    for one in made:
        subprocess.run(["umount", "--lazy", str(one)], check=False)


@pytest.mark.parametrize("room", ["inodes", "bytes"])
def test_a_launch_into_a_full_store_leaves_no_folder(
    room: str, mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "spawn_supervisor", lambda *_: None)
    monkeypatch.setattr(start, "shortage", lambda *_, **__: "")  # it fills up after the look
    place = mount("size=2m,nr_inodes=40" if room == "inodes" else "size=64k")
    store, fill = place / "runs", place / "fill"
    store.mkdir()
    fill.mkdir()
    request = wb.request("gpt", cpu=True, processes=1, store=store)
    refused = 0
    for number in range(40):  # less room each time, down to none
        try:
            paths = start.begin(request)
        except wb.StoreError:
            refused += 1
            left = list(store.iterdir())
            assert left == []
        else:
            shutil.rmtree(paths.directory)
        try:
            (fill / str(number)).write_bytes(b"x" * (4096 if room == "bytes" else 0))
        except OSError:
            break
    assert refused


@pytest.mark.parametrize(("options", "why"), [("size=512k", "512 KiB"), ("nr_inodes=40", "inodes")])
def test_a_store_without_room_for_a_run_is_refused_with_its_disk(
    options: str, why: str, mount: Mount
) -> None:
    place = mount(options)
    with pytest.raises(wb.StoreError, match=f"{why}.*Free space there, or choose another") as told:
        start.begin(wb.request("gpt", cpu=True, processes=1, store=place / "runs"))
    assert str(place) in str(told.value)
    assert list(place.iterdir()) == []


def test_a_reserve_that_does_not_fit_takes_nothing(mount: Mount) -> None:
    place = mount("size=64k")
    with pytest.raises(OSError, match="No space left"):
        reserve(place / "reserve", 200_000)
    assert list(place.iterdir()) == []
    (place / "state.json").write_bytes(b"x" * 4096)


def begun_long_ago(store: Path) -> RunPaths:
    """A run of which its supervisor has reported nothing."""
    paths = make_run(store, "slow", created_at=time.time() - 100)
    for path in (paths.state, paths.exit):
        path.unlink(missing_ok=True)
    return paths


def test_a_supervisor_that_cannot_write_is_not_taken_for_gone(mount: Mount) -> None:
    place = mount("size=1m")
    paths = begun_long_ago(place / "runs")
    with watched(paths.directory):  # a busy machine: it has not come to its first report
        status = read_status(paths)
        assert (status.state, status.message) == ("starting", None)
        with (place / "fill").open("wb") as fill, pytest.raises(OSError, match="No space"):
            fill.write(b"x" * (1 << 20))
        status = read_status(paths)
        assert (status.state, status.live) == ("starting", True)
        assert f"only 0 B are free on the disk of {paths.directory}" in str(status.message)
        assert "workbench stop slow" in str(status.message)
    gone = read_status(paths)
    assert gone.state == "interrupted"
    assert "reported nothing" in str(gone.message)
    assert "only 0 B are free" in str(gone.message)

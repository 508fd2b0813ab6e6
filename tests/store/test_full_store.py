"""A store without room: a launch is refused in a sentence and leaves nothing behind."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import workbench as wb
from workbench.launching.start import start

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

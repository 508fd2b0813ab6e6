"""Where calibrations lie: their keys, their files, the corrections beside them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import workbench as wb
from workbench.store import calibrations

HOST = wb.Cluster(name="a", cpu_name="CPU ⅓ / ../x", cpu_cores=8)


def test_a_key_is_the_hardware_not_the_name() -> None:
    key = calibrations.host_key(HOST)
    assert calibrations.host_key(dataclasses.replace(HOST, name="b", usd_per_hour=3.0)) == key
    assert calibrations.host_key(dataclasses.replace(HOST, cpu_cores=4)) != key
    gpus = wb.Cluster.rented("h100-sxm", gpus=2)
    assert calibrations.host_key(gpus) != calibrations.host_key(wb.Cluster.rented("h100-sxm"))
    assert calibrations.host_key(gpus, cpu=True).startswith("cpu-")


def test_what_is_written_is_read_and_is_no_run(tmp_path: Path) -> None:
    key = calibrations.host_key(HOST)
    assert calibrations.read_calibration(tmp_path, key) is None
    path = calibrations.write_calibration(tmp_path, key, {"format": 1, "rate": 2.5})
    assert path.parent == calibrations.folder(tmp_path)
    assert calibrations.read_calibration(tmp_path, key) == {"format": 1, "rate": 2.5}
    assert wb.Store(tmp_path).ids() == []
    with pytest.raises(wb.RunNotFoundError):
        wb.Store(tmp_path).find("calibrations")
    path.write_text('{"format": 1, "ra')
    assert calibrations.read_calibration(tmp_path, key) is None
    path.unlink()
    path.symlink_to("/etc/hostname")
    assert calibrations.read_calibration(tmp_path, key) is None


def test_corrections_are_only_added(tmp_path: Path) -> None:
    key = calibrations.host_key(HOST)
    assert calibrations.read_corrections(tmp_path, key) == []
    for ratio in (1.1, 0.9):
        calibrations.append_correction(tmp_path, key, {"ratio": ratio})
    with (calibrations.folder(tmp_path) / f"{key}.corrections.jsonl").open("a") as file:
        file.write("broken\n")
    calibrations.append_correction(tmp_path, key, {"ratio": 1.0})
    assert [one["ratio"] for one in calibrations.read_corrections(tmp_path, key)] == [1.1, 0.9, 1.0]


@pytest.mark.parametrize("key", ["", "../x", "A", "a/b", "a.json", "-a"])
def test_a_key_cannot_leave_the_folder(tmp_path: Path, key: str) -> None:
    with pytest.raises(wb.UsageError, match="host_key"):
        calibrations.read_calibration(tmp_path, key)
    with pytest.raises(wb.UsageError, match="host_key"):
        calibrations.append_correction(tmp_path, key, {})

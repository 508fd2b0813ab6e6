"""A line that was torn at any byte costs itself at most: not the line before it, nor the next."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from workbench.launching.capture import log_values
from workbench.launching.capture.writers import LineWriter
from workbench.launching.resume.attempts import Attempts, furthest
from workbench.observe.events import last_rows, read_metrics
from workbench.observe.view import recent_samples
from workbench.recover.checkpoints import list_checkpoints
from workbench.store import calibrations
from workbench.store.cut_lines import cut_after
from workbench.store.files import LineReader, parse_line, write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.schema import BY_HAND
from workbench.store.starts import read_attempts

HOST = "cpu-8"


def by_line_writer(path: Path, record: dict[str, Any]) -> None:
    writer = LineWriter(str(path))
    writer.write(json.dumps(record).encode() + b"\n")
    writer.close()


def by_attempts(path: Path, record: dict[str, Any]) -> None:
    attempts = Attempts(RunPaths(path.parent))
    attempts._write(record)


def by_log(path: Path, record: dict[str, Any]) -> None:
    handle = log_values.open_lines(str(path), 0o600)
    os.write(handle, json.dumps(record).encode() + b"\n")
    os.close(handle)


def by_correction(path: Path, record: dict[str, Any]) -> None:
    calibrations.append_correction(path.parents[1], HOST, record)


def line(number: int) -> dict[str, Any]:
    return {"attempt": number, "event": "start", "time": float(number), "step": number, "gpus": []}


Appender = Callable[[Path, dict[str, Any]], None]
KINDS: dict[str, tuple[str, Appender]] = {
    "metrics": ("metrics/rank-0.jsonl", by_line_writer),
    "hardware samples": ("system.jsonl", by_line_writer),
    "checkpoints": ("checkpoints.jsonl", by_line_writer),
    "attempts": ("attempts.jsonl", by_attempts),
    "workbench.log": ("metrics/rank-0.said.jsonl", by_log),
}


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    found = wb.Store(tmp_path).create("torn")
    write_json_atomic(found.run, {"run": "torn", "processes": 1})
    return found


def read(path: Path) -> list[int]:
    reader, found = LineReader(path), list[int]()
    while lines := reader.read():
        found += [one["step"] for one in lines]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_cut_at_every_byte_and_appended_to(kind: str, paths: RunPaths) -> None:
    name, append = KINDS[kind]
    path = paths.directory / name
    for number in (1, 2):
        append(path, line(number))
    whole = path.read_bytes()
    kept = whole.index(b"\n") + 1
    for cut in range(kept, len(whole) + 1):
        path.write_bytes(whole[:cut])
        append(path, line(3))
        expected = [1, 2, 3] if cut >= len(whole) - 1 else [1, 3]
        assert read(path) == expected, whole[:cut]


def test_corrections_are_cut_at_every_byte(tmp_path: Path) -> None:
    for number in (1, 2):
        calibrations.append_correction(tmp_path, HOST, line(number))
    (path,) = tmp_path.rglob("*.corrections.jsonl")
    whole = path.read_bytes()
    for cut in range(whole.index(b"\n") + 1, len(whole)):
        path.write_bytes(whole[:cut])
        calibrations.append_correction(tmp_path, HOST, line(3))
        steps = [one["step"] for one in calibrations.read_corrections(tmp_path, HOST)]
        assert steps in ([1, 3], [1, 2, 3])


@pytest.mark.parametrize("damage", [b"", b"\0" * 7, b"\xff\xfe", b"garbage", b"]["])
def test_what_is_glued_to_a_torn_line_is_read(damage: bytes, paths: RunPaths) -> None:
    """By earlier versions, which did not end it."""
    first, second, third = (json.dumps(line(number)).encode() for number in (1, 2, 3))
    for cut in range(len(second)):
        path = paths.system
        path.write_bytes(first + b"\n" + second[:cut] + damage + third + b"\n")
        assert read(path) == [1, 3]
        assert [one["step"] for one in last_rows(path)] == [1, 3]
        assert [one["time"] for one in recent_samples(paths)] == [1.0, 3.0]


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "1e400", "NaN", '"x"', "null"])
def test_an_attempt_whose_number_cannot_be_is_left_out(paths: RunPaths, number: str) -> None:
    line = '{"attempt": 1, "event": "start", "time": 5.0}\n'
    for name in ("attempt", "time"):
        strange = json.dumps({"attempt": 2, "event": "end", "time": 6.0, name: "@"})
        paths.attempts.write_text(line + strange.replace('"@"', number) + "\n" + line)
        numbers = [attempt["attempt"] for attempt in read_attempts(paths)]
        assert numbers in ([1, 1], [1, 2, 1])


def test_an_inner_object_is_no_record() -> None:
    assert parse_line(b'{"time": 1, "gpu": {"index": 0}') == (None, False)
    assert parse_line(b'{"time": 1, "gpus": [{"index": 0}{"time": 2, "gpus": []}') == (
        {"time": 2, "gpus": []},
        False,
    )


def test_a_writer_goes_on_with_the_line_that_a_full_disk_tore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, real = LineWriter(str(tmp_path / "lines")), os.write
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, data[:5]))
    writer.write(b'{"step": 1}\n')
    monkeypatch.setattr(os, "write", real)
    writer.close()
    writer.write(b'{"step": 2}\n')
    assert read(tmp_path / "lines") == [1, 2]


class Disk:
    """Takes `room` bytes in all, then refuses."""

    def __init__(self, room: int) -> None:
        self.room, self._write = room, os.write

    def write(self, handle: int, data: bytes) -> int:
        if self.room <= 0:
            raise OSError(errno.ENOSPC, "full")
        written = self._write(handle, data[: self.room])
        self.room -= written
        return written


@pytest.mark.parametrize("torn", [0, 5, 30, 31])
@pytest.mark.parametrize("closes", [None, 1, 3])
def test_no_step_is_lost_to_a_disk_that_is_full_for_a_while_after_a_torn_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: int, closes: int | None
) -> None:
    """Whichever byte it is that has no room."""
    records = [json.dumps({"step": one, "time": float(one)}).encode() + b"\n" for one in range(6)]
    path = tmp_path / "rank-0.jsonl"
    for room in range(70):
        path.write_bytes(records[0][:torn])
        writer, disk = LineWriter(str(path)), Disk(room)
        monkeypatch.setattr(os, "write", disk.write)
        for number, record in enumerate(records[1:], 1):
            disk.room += 1000 * (number == 4)
            writer.write(record)
            if number == closes:
                writer.close()
        monkeypatch.undo()
        writer.close()
        assert read(path)[-5:] == [1, 2, 3, 4, 5], room


def test_attempts_that_a_full_disk_refused_come_with_the_next(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = len(json.dumps(line(1)))
    for room in range(whole + 2):
        paths.attempts.write_bytes(b"")
        attempts, disk = Attempts(paths), Disk(room)
        monkeypatch.setattr(os, "write", disk.write)
        attempts._write(line(1))
        assert paths.attempts.read_bytes() in {b"", json.dumps(line(1)).encode() + b"\n"}
        disk.room = 1000
        attempts._write(line(2))
        monkeypatch.undo()
        assert [one["attempt"] for one in read_attempts(paths)] == [1, 2], room


@pytest.mark.parametrize("cut", [0, 1])
@pytest.mark.parametrize("glued", [b"", b'{"step": 4, "ti'])
def test_the_step_of_the_checkpoint_stays_where_only_its_newline_is_missing(
    paths: RunPaths, cut: int, glued: bytes
) -> None:
    """A disk was full for one byte; the next attempt begins behind that step."""
    path = paths.rank_metrics(0)
    for number in range(1, 5):
        by_line_writer(path, {"step": number, "time": float(number), "loss": 1.0})
    record = json.dumps({"step": 5, "time": 5.0, "loss": 1.0}).encode() + b"\n"
    path.write_bytes(path.read_bytes() + glued + record[: len(record) - cut])
    cut_after(path, 5, paths.metrics / "rank-0.lost.1")
    by_line_writer(path, {"step": 6, "time": 6.0, "loss": 1.0})
    assert [row["step"] for row in read_metrics(paths, 1)] == [1, 2, 3, 4, 5, 6]


def begun(paths: RunPaths, number: int) -> None:
    """A run in its attempt `number`, and what that attempt left in control/."""
    for _ in range(number):
        Attempts(paths).begin(first_step=0, checkpoint=None, why=None)
    write_json_atomic(paths.state, {"attempt": number, "heartbeat": 5.0})
    by_line_writer(paths.rank_metrics(0), {"step": 7, "time": 1.0, "loss": 1.0})
    for name in ("stop-now", "stop", "preempt", "stop-at", "terminating"):
        (paths.control / name).touch()


@pytest.mark.parametrize("damage", ["torn", "empty", "gone", "zeros"])
def test_attempts_are_never_numbered_anew_and_old_requests_stop_nothing(
    damage: str, paths: RunPaths
) -> None:
    begun(paths, 3)
    data = paths.attempts.read_bytes()
    if damage == "gone":
        paths.attempts.unlink()
    else:
        changed = {"torn": data[:-1], "empty": b"", "zeros": b"\0" * len(data)}[damage]
        paths.attempts.write_bytes(changed)
    attempts = Attempts(paths)
    assert attempts.number == 3
    attempts.begin(first_step=5, checkpoint="/c", why=BY_HAND)
    assert Attempts(paths).number == 4
    assert read_attempts(paths)[-1]["first_step"] == 5
    left = {path.name for path in paths.control.iterdir()}
    assert not left & {"stop-now", "stop", "preempt", "stop-at", "terminating"}
    assert furthest(paths) == 0  # step 7 happens again


@pytest.mark.parametrize("cut", [1, 40])
def test_an_end_whose_line_tore_is_noted_once_and_as_it_was(cut: int, paths: RunPaths) -> None:
    first = Attempts(paths)
    first.begin(first_step=0, checkpoint=None, why=None)
    first.end(last_step=7, message="Stopped as asked.", at=9.0)
    paths.attempts.write_bytes(paths.attempts.read_bytes()[:-cut])
    write_json_atomic(paths.exit, {"message": "Stopped as asked.", "ended_at": 9.0})
    again = Attempts(paths)
    paths.exit.unlink()  # as a supervisor does before the next attempt
    again.begin(first_step=5, checkpoint="/c", why=BY_HAND)
    ends = [one for one in read_attempts(paths) if one["event"] == "end"]
    assert [(one["attempt"], one["message"], one["time"]) for one in ends] == [
        (1, "Stopped as asked.", 9.0)
    ]
    assert Attempts(paths).number == 2


def test_requests_stop_nothing_even_where_no_file_tells_of_an_attempt(paths: RunPaths) -> None:
    begun(paths, 1)
    for path in (paths.attempts, paths.state):
        path.unlink()
    Attempts(paths).begin(first_step=5, checkpoint="/c", why=BY_HAND)
    assert not (paths.control / "stop-now").exists()


def test_a_request_made_while_a_run_starts_stands(paths: RunPaths) -> None:
    (paths.control / "stop").touch()
    Attempts(paths).begin(first_step=0, checkpoint=None, why=None)
    assert (paths.control / "stop").exists()


def test_torn_metrics_lose_one_step_at_most_when_the_run_goes_back(paths: RunPaths) -> None:
    path = paths.rank_metrics(0)
    for number in range(1, 6):
        by_line_writer(path, {"step": number, "time": float(number), "loss": 1.0})
    path.write_bytes(path.read_bytes()[:-9])  # step 5 is torn
    cut_after(path, 4, paths.metrics / "rank-0.lost.1")
    for number in (5, 6):
        by_line_writer(path, {"step": number, "time": float(number), "loss": 1.0})
    assert [row["step"] for row in read_metrics(paths, 1)] == [1, 2, 3, 4, 5, 6]


def test_checkpoints_are_listed_after_a_torn_line(paths: RunPaths, tmp_path: Path) -> None:
    for number in (10, 20):
        folder = tmp_path / f"checkpoint-{number}"
        folder.mkdir()
        (folder / "model.bin").write_text("x")
        by_line_writer(paths.saved, {"step": number, "path": str(folder), "time": 1.0})
        paths.saved.write_bytes(paths.saved.read_bytes()[:-1])
    by_line_writer(paths.saved, {"step": 30, "path": str(tmp_path), "time": 1.0})
    assert {one.step for one in list_checkpoints(paths)} == {10, 20, 30}

"""The capture hook's parts, with real torch, without processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from workbench.launch.capture.hook import _program  # noqa: E402
from workbench.launch.capture.patches import ScalarReader  # noqa: E402
from workbench.launch.capture.recorder import LineWriter, PatientFile, Recorder  # noqa: E402


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    (tmp_path / "metrics").mkdir()
    (tmp_path / "control").mkdir()
    made = Recorder(str(tmp_path), 0)
    made.reader = ScalarReader(torch)
    return made


def lines(recorder: Recorder) -> list[dict]:
    text = Path(recorder._writer._path).read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_micro_batches_become_one_step_with_their_mean(recorder: Recorder) -> None:
    for value in (1.0, 3.0):
        recorder.backward(torch.tensor(value, requires_grad=True))
    recorder.grad_norm(torch.tensor(0.5))
    recorder.step(0.1)
    recorder.step(0.1)  # a second optimizer without a backward of its own
    (line,) = lines(recorder)
    assert (line["step"], line["loss"], line["grad_norm"], line["lr"]) == (1, 2.0, 0.5, 0.1)


def test_nothing_of_the_script_is_kept_alive(recorder: Recorder) -> None:
    for _ in range(5000):  # backwards without any optimizer step
        loss = torch.ones(1, requires_grad=True).sum()
        recorder.backward(loss)
        recorder.backward(torch.ones(1000, requires_grad=True))  # not a scalar
    assert len(recorder._losses) == 1024
    assert all(kept.numel() == 1 and kept.grad_fn is None for kept in recorder._losses)


def test_a_stop_step_that_lies_behind_is_not_obeyed(recorder: Recorder, tmp_path: Path) -> None:
    stop = tmp_path / "control" / "stop-at"
    for _ in range(5):
        recorder.backward(1.0)
        recorder.step(None)
    stop.write_text("3")
    assert not recorder.stop_due()
    recorder._next_stop_poll = 0.0
    stop.write_text("6")
    assert not recorder.stop_due()
    recorder.backward(1.0)
    recorder.step(None)
    assert recorder.stop_due()


def test_a_refusing_disk_keeps_lines_waiting_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    writer = LineWriter(str(folder / "m.jsonl"))
    for number in range(3):
        writer.write(f"{number}\n".encode())  # the folder is not there: every write fails
    folder.mkdir()
    writer.write(b"3\n")
    assert (folder / "m.jsonl").read_text() == "0\n1\n2\n3\n"


def test_output_outlives_a_descriptor_that_refuses() -> None:
    file = PatientFile(987, "<closed>")
    assert file.write(b"x" * 10) == 10
    assert file.write(b"y" * 5_000_000) == 5_000_000
    assert len(file._pending) <= 1 << 20


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["python", "train.py", "accelerate"], ("script", "train.py")),
        (["python", "-u", "-X", "dev", "train.py"], ("script", "train.py")),
        (
            ["python", "-m", "accelerate.commands.launch", "x.py"],
            ("-m", "accelerate.commands.launch"),
        ),
        (
            ["python", "-c", "from multiprocessing.spawn import x"],
            ("-c", "from multiprocessing.spawn import x"),
        ),
        (["python"], ("", "")),
    ],
)
def test_what_python_was_asked_to_run(words: list[str], program: tuple[str, str]) -> None:
    assert _program(words) == program

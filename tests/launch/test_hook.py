"""The capture hook's parts, with real torch, without processes."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.conftest import until  # noqa: E402
from tests.faults.matrix import record  # noqa: E402
from workbench.launching.capture import (  # noqa: E402
    SITE_FOLDER,
    batches,
    graceful_stop,
    loaders,
    models,
    warned,
    writers,
)
from workbench.launching.capture.hook import _program  # noqa: E402
from workbench.launching.capture.patches import _AfterImport, when_imported  # noqa: E402
from workbench.launching.capture.pulse import FORWARD, Pulse  # noqa: E402
from workbench.launching.capture.reader import ScalarReader  # noqa: E402
from workbench.launching.capture.recorder import Recorder  # noqa: E402
from workbench.launching.capture.writers import LineWriter, PatientFile  # noqa: E402
from workbench.observe.pulse import read_pulse  # noqa: E402


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    (tmp_path / "metrics").mkdir()
    (tmp_path / "control").mkdir()
    made = Recorder(str(tmp_path), 0)
    made.reader = ScalarReader(torch)
    return made


def lines(recorder: Recorder) -> list[dict]:
    assert recorder.flush()
    text = Path(recorder._lines.path).read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_a_step_that_the_script_tells_itself_has_its_tokens_and_rate(recorder: Recorder) -> None:
    recorder.logged_step(None, {"loss": 2.0, "lr": 1, "tokens": 4096.0})
    recorder.logged_step(None, {"loss": 1.0, "lr": "fast", "tokens": "many"})
    recorder.logged_step(None, {"loss": 0.5})
    told = [(line["loss"], line.get("lr"), line.get("tokens")) for line in lines(recorder)]
    assert told == [(2.0, 1.0, 4096), (1.0, None, None), (0.5, None, None)]


def test_micro_batches_become_one_step_with_their_sum(recorder: Recorder) -> None:
    for value in (1.0, 3.0):
        recorder.backward(torch.tensor(value, requires_grad=True))
    recorder.grad_norm(torch.tensor(0.5))
    recorder.step(0.1)
    recorder.step(0.1)  # a second optimizer without a backward of its own
    (line,) = lines(recorder)
    assert (line["step"], line["loss"], line["grad_norm"], line["lr"]) == (1, 4.0, 0.5, 0.1)


def test_nothing_of_the_script_is_kept_alive(recorder: Recorder) -> None:
    for _ in range(5000):  # backwards without any optimizer step
        loss = torch.ones(1, requires_grad=True).sum()
        recorder.backward(loss)
        recorder.backward(torch.ones(1000, requires_grad=True))  # not a scalar
    assert len(recorder._losses) == 1024
    assert all(type(kept) is float for kept in recorder._losses)


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


def test_a_disk_that_stalls_does_not_hold_up_the_steps(recorder: Recorder) -> None:
    file = Path(recorder._lines.path)
    os.mkfifo(file)  # opening it for writing waits for a reader, as a dead file server's would
    begun = time.perf_counter()
    for _ in range(1000):
        recorder.backward(1.0)
        recorder.step(None)
    spent = time.perf_counter() - begun
    assert recorder.steps == 1000
    assert not recorder.flush(0.2)  # an end does not wait for ever either
    with file.open("rb", buffering=0) as reader:
        got = b""
        while got.count(b"\n") < 1000:
            got += reader.read(1 << 16)
    assert [json.loads(line)["step"] for line in got.splitlines()] == list(range(1, 1001))
    assert recorder.flush()
    record(40, f"1000 steps while the rank's file stalls: {1e6 * spent / 1000:.0f} µs each")


def test_a_saved_checkpoint_has_every_line_before_it(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "_LOOK_SECONDS", 30.0)  # the thread would look again at last
    written = Path(recorder._lines.path)
    for last in (20, 40):
        while recorder.steps < last:
            recorder.backward(torch.tensor(1.0, requires_grad=True))
            recorder.step(0.1)
        with graceful_stop.saving(recorder, "recipe"):
            until(lambda last=last: len(written.read_text().splitlines()) == last, 5, "lines")
    assert recorder.pulse.phase == FORWARD


def test_the_writing_thread_sleeps_while_no_lines_come_and_writes_the_next_one_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "_LOOK_SECONDS", 0.001)
    path = tmp_path / "lines.jsonl"
    path.touch()
    written = writers.LaterLines(str(path), dict, lambda: None)
    for number in range(3):
        monkeypatch.setattr(writers, "_LOOK_SECONDS", 30.0)
        written.write({"step": number})
        until(lambda number=number: path.read_text().count("\n") > number, 5, "the line")
        monkeypatch.setattr(writers, "_LOOK_SECONDS", 0.001)
        written.wake()
        until(lambda: written.idle, 5, "sleep")


def test_a_step_costs_few_calls(recorder: Recorder) -> None:
    """Between two steps of a model each call of ours costs several times what it does in a loop."""
    calls: Counter[str] = Counter()

    def count(frame: Any, event: str, _argument: Any) -> None:
        if event == "call" and "capture" in Path(frame.f_code.co_filename).parts:
            calls[frame.f_code.co_name] += 1

    def step() -> None:
        recorder.backward(torch.tensor(1.0, requires_grad=True))
        recorder.grad_norm(torch.tensor(1.0))
        recorder.step(0.1)
        batches.measure([torch.ones(2, 3)], fingerprint=False)

    for _ in range(20):
        step()
    sys.setprofile(count)
    for _ in range(10):
        step()
    sys.setprofile(None)
    assert sum(calls.values()) <= 10 * 18, calls


def test_a_rank_that_goes_on_quickly_is_seen_where_it_stands(recorder: Recorder) -> None:
    path = Path(recorder._lines.path).with_name("rank-0.pulse")
    for _ in range(50):
        recorder.backward(torch.tensor(1.0, requires_grad=True))
        recorder.step(0.1)
    recorder.backward(torch.tensor(1.0, requires_grad=True))

    def seen() -> tuple[int, str] | None:
        pulse = read_pulse(path)
        return pulse and (pulse.steps, pulse.phase)

    until(lambda: seen() == (50, "backward"), 5, "the last beat")


def test_output_outlives_a_disk_that_refuses_and_no_descriptor_that_is_gone() -> None:
    with Path("/dev/full").open("wb", buffering=0) as full:
        file = PatientFile(full.fileno(), "<full>")
        assert file.write(b"x" * 10) == 10
        assert file.write(b"y" * 5_000_000) == 5_000_000
        assert sum(map(len, file._pending)) <= 1 << 20
    with pytest.raises(OSError, match="Bad file descriptor"):
        PatientFile(987, "<closed>").write(b"x")


def test_a_descriptor_that_the_script_took_over_is_left_to_it(tmp_path: Path) -> None:
    """A script that closes all descriptors opens files of its own under the same numbers."""
    writer, pulse = LineWriter(str(tmp_path / "lines")), Pulse(str(tmp_path / "pulse"))
    writer.write(b"one\n")
    lines, beats = writer._file, pulse._file
    assert lines is not None
    assert beats is not None
    with (tmp_path / "own").open("w+") as own:
        for descriptor in (lines, beats):
            os.dup2(own.fileno(), descriptor)
        writer.write(b"two\n")
        pulse.beat(FORWARD, 1)
        pulse.flush()
        assert own.read() == ""
    assert pulse._file is not None
    os.close(pulse._file)
    found = read_pulse(tmp_path / "pulse")
    assert found is not None
    assert found.steps == 1
    os.close(lines)
    os.close(beats)
    writer.close()
    assert (tmp_path / "lines").read_text() == "one\ntwo\n"


@pytest.mark.parametrize(("ending", "code"), [("", None), ("sys.exit(4)", 4), ("0 / 0", 1)])
def test_an_exit_that_the_script_catches_is_not_its_end(
    tmp_path: Path, ending: str, code: int | None
) -> None:
    for folder in ("metrics", "logs", "control"):
        (tmp_path / folder).mkdir()
    script = tmp_path / "script.py"
    script.write_text(
        "import argparse, sys\n"
        "try:\n    argparse.ArgumentParser().parse_args(['--unknown'])\n"
        "except SystemExit:\n    pass\n"
        f"sys.modules['_workbench_capture'].recorder().steps += 1\n{ending}\n"
    )
    variables = {"PYTHONPATH": str(SITE_FOLDER), "WORKBENCH_RUN_DIR": str(tmp_path), "RANK": "0"}
    subprocess.run([sys.executable, str(script)], env={**os.environ, **variables}, check=False)
    end = json.loads((tmp_path / "metrics" / "rank-0.end.json").read_text())
    assert (end["ok"], end["exit_code"]) == (code is None, code)


def test_threads_that_print_at_once_lose_no_line(tmp_path: Path) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    with (tmp_path / "log").open("wb", buffering=0) as log:
        file = PatientFile(log.fileno(), "<log>")

        def work(name: int) -> None:
            for number in range(1000):
                file.write(b"%d-%d\n" % (name, number))

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    sys.setswitchinterval(interval)
    expected = sorted(f"{name}-{number}" for name in range(4) for number in range(1000))
    assert sorted((tmp_path / "log").read_text().split()) == expected


def test_asking_whether_a_library_is_there_does_not_unwatch_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`datasets` and `transformers` look for torch long before anyone imports it."""
    (tmp_path / "looked_for.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[int] = []
    finder = _AfterImport({"looked_for": lambda module: seen.append(module.VALUE)})
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    for _ in range(2):
        assert importlib.util.find_spec("looked_for") is not None
    assert seen == []
    importlib.import_module("looked_for")
    assert seen == [1]
    assert finder not in sys.meta_path


def test_a_library_in_an_editable_install_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own finder knows where it lies, sys.path does not: pip install -e, with setuptools."""
    (tmp_path / "an_editable_library.py").write_text("steps = 1\n")

    class EditableFinder:
        @staticmethod
        def find_spec(fullname: str, path: Any = None, target: Any = None) -> Any:
            if fullname != "an_editable_library":
                return None
            place = tmp_path / "an_editable_library.py"
            return importlib.util.spec_from_file_location(fullname, place)

    seen = list[int]()
    actions = {"an_editable_library": lambda module: seen.append(module.steps)}
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, EditableFinder])
    when_imported(actions)
    importlib.import_module("an_editable_library")
    sys.modules.pop("an_editable_library")
    assert seen == [1]


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
        (["python", "run/config/cpu_ranks.py", "train.py", "--x"], ("script", "train.py")),
        (["python", "run/config/cpu_ranks.py", "-m", "a.train"], ("-m", "a.train")),
    ],
)
def test_what_python_was_asked_to_run(words: list[str], program: tuple[str, str]) -> None:
    assert _program(words) == program


def test_a_loader_that_a_loop_makes_anew_in_each_epoch_tells_how_it_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No one but its iterator is left of it when the first backward pass begins."""
    from torch.utils.data import dataloader

    told: list[list[dict]] = []

    def note(*, samplers: list[dict]) -> None:
        told.append(samplers)

    recorder = SimpleNamespace(steps=0, owner=os.getpid(), note=note)
    monkeypatch.setattr(dataloader.DataLoader, "__iter__", dataloader.DataLoader.__iter__)
    iterator = dataloader._BaseDataLoaderIter
    monkeypatch.setattr(iterator, "__next__", iterator.__next__)
    loaders.patch(recorder, dataloader)
    for _ in range(12):
        for _ in dataloader.DataLoader(torch.zeros(4, 2), batch_size=2, shuffle=True):
            recorder.loaders.used()
    (sampler,) = told[-1]
    assert (sampler["sampler"], sampler["distributed"]) == ("RandomSampler", False)
    assert len(told) == 1


def test_a_warning_to_the_caller_of_a_wrapped_method_names_the_callers_file(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Model:
        training = True

        def forward(self, level: int) -> None:
            warnings.warn("deprecated", FutureWarning, stacklevel=level)

    models.observe_forward(recorder, Model)

    def places() -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for level in (1, 2, 3, 0, -1):  # Python takes what is below 1 for 1
                Model().forward(level)
        return [Path(one.filename).name for one in caught]

    assert places()[1] == "models.py"
    monkeypatch.setattr(warnings, "warn", warnings.warn)  # put back afterwards
    warned.patch()
    assert places() == ["test_hook.py"] * 5

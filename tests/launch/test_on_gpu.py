"""What the hook does in a rank on a GPU, against a simulated device that lags behind."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.launch import simulated_cuda  # noqa: E402
from tests.launch.simulated_cuda import CudaTensor, Device  # noqa: E402
from workbench.launching.capture import ends, log_values, patches  # noqa: E402
from workbench.launching.capture.reader import ScalarReader  # noqa: E402
from workbench.launching.capture.recorder import Recorder  # noqa: E402


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Device:
    return simulated_cuda.use(monkeypatch)


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    (tmp_path / "metrics").mkdir()
    (tmp_path / "control").mkdir()
    monkeypatch.setenv("WORKBENCH_RUN_DIR", str(tmp_path))
    made = Recorder(str(tmp_path), 0)
    made.reader = ScalarReader(torch)
    hook = types.SimpleNamespace(recorder=lambda: made, leave=None)
    monkeypatch.setitem(sys.modules, "_workbench_capture", hook)
    return made


def on_gpu(value: float) -> Any:
    return CudaTensor(torch.tensor(value))


def lines(recorder: Recorder, name: str) -> list[dict[str, Any]]:
    path = Path(recorder.folder, "metrics", f"rank-0.{name}")
    return [json.loads(line) for line in path.read_text().splitlines()]


class Optimizer:
    def __init__(self, parameter: Any, lr: Any) -> None:
        self.param_groups = [{"params": [parameter], "lr": lr}]


def optimizer_of(lr: Any = 0.1) -> Any:
    parameter = CudaTensor(torch.arange(8.0)).requires_grad_()
    parameter.grad = CudaTensor(torch.ones(8))
    return Optimizer(parameter, lr)


def step(recorder: Recorder, loss: Any, optimizer: Any, norm: Any = None) -> None:
    recorder.backward(loss)
    recorder.grad_norm(norm)
    recorder.optimizing()
    patches._step_ended(recorder, {}, optimizer)


def test_steps_come_in_order_and_nothing_waits_for_the_device(
    gpu: Device, recorder: Recorder
) -> None:
    optimizer = optimizer_of()
    for number in range(1, 101):
        loss = 0.5 if number % 10 == 0 else on_gpu(float(number))  # now and then one of the CPU
        step(recorder, loss, optimizer, on_gpu(2.0))
    assert gpu.waits == 0
    gpu.run()
    step(recorder, on_gpu(101.0), optimizer)
    gpu.run()
    recorder.drain()
    recorder.flush()
    found = lines(recorder, "jsonl")
    assert [line["step"] for line in found] == list(range(1, 102))
    expected = [0.5 if number % 10 == 0 else number for number in range(1, 102)]
    assert [line["loss"] for line in found] == expected
    assert gpu.waits == 0


def test_a_step_of_several_losses_has_their_sum(gpu: Device, recorder: Recorder) -> None:
    optimizer = optimizer_of()
    recorder.backward(on_gpu(0.25))
    step(recorder, on_gpu(0.5), optimizer, on_gpu(3.0))
    gpu.run()
    recorder.drain()
    recorder.flush()
    line = lines(recorder, "jsonl")[0]
    assert (line["loss"], line["grad_norm"], line["memory_bytes"]) == (0.75, 3.0, 1 << 30)


def test_pinned_memory_is_used_again(gpu: Device, recorder: Recorder) -> None:
    optimizer = optimizer_of()
    for number in range(300):
        step(recorder, on_gpu(float(number)), optimizer)
        recorder.logged.add(number, {"a": on_gpu(1.0), "b": on_gpu(2.0)})
        gpu.run()
    assert gpu.pinned == 3  # steps, logged values, weights
    assert gpu.waits == 0


def test_an_allocator_without_counters_costs_no_step(
    gpu: Device, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_device: Any = None) -> int:
        raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats.")

    for name in ("max_memory_allocated", "memory_allocated", "memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, refuse)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1, 2))
    step(recorder, on_gpu(1.0), optimizer_of())
    gpu.run()
    recorder.drain()
    recorder.flush()
    assert [(line["step"], line["loss"]) for line in lines(recorder, "jsonl")] == [(1, 1.0)]
    assert "memory_bytes" not in lines(recorder, "jsonl")[0]  # not the process's own
    assert ends._gpu_memory() == {"gpu_memory": {"free_bytes": 1, "total_bytes": 2}}


def test_steps_before_an_error_of_the_device_are_recorded(gpu: Device, recorder: Recorder) -> None:
    optimizer = optimizer_of()
    for number in (1, 2, 3):
        step(recorder, on_gpu(float(number)), optimizer)
    gpu.broken = True
    recorder.drain()
    recorder.flush()
    found = lines(recorder, "jsonl")
    assert [line["step"] for line in found] == [1, 2, 3]
    assert not any("loss" in line for line in found)


def test_values_that_come_while_they_are_asked_for_are_not_lost(
    gpu: Device, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that ended between two questions was taken for neither arrived nor waiting."""
    query = simulated_cuda.Event.query

    def ends_after(event: Any) -> bool:
        there = query(event)
        gpu.run()
        return there

    monkeypatch.setattr(simulated_cuda.Event, "query", ends_after)
    for number in range(20):
        recorder.logged.add(number, {"a": on_gpu(float(number))})
    recorder.logged.drain()
    told = [line["values"]["a"] for line in lines(recorder, "said.jsonl")]
    assert told == [float(number) for number in range(20)]


def test_a_logged_value_is_exact_and_has_its_step(gpu: Device, recorder: Recorder) -> None:
    recorder.logged.add(7, {"tokens": CudaTensor(torch.tensor(1_000_000_007)), "cpu": 0.5})
    gpu.run()
    recorder.logged.drain()
    values = {
        name: v for line in lines(recorder, "said.jsonl") for name, v in line["values"].items()
    }
    assert values == {"tokens": 1_000_000_007.0, "cpu": 0.5}
    assert {line["step"] for line in lines(recorder, "said.jsonl")} == {7}


def test_the_logging_line_does_not_wait(gpu: Device, recorder: Recorder) -> None:
    for number in range(10):
        log_values.log({"acc": on_gpu(number / 8), "epoch": 1}, step=number)
    log_values.log(loss=on_gpu(0.5), step=11)  # of a script that tells its steps
    assert gpu.waits == 0
    gpu.run()
    recorder.drain()
    recorder.flush()
    said = lines(recorder, "said.jsonl")
    told = {line["step"]: line["values"]["acc"] for line in said if "acc" in line["values"]}
    assert told == {number: number / 8 for number in range(10)}
    assert [(line["step"], line["loss"]) for line in lines(recorder, "jsonl")] == [(11, 0.5)]


def test_looks_at_weights_neither_wait_nor_allocate(gpu: Device, recorder: Recorder) -> None:
    optimizer = optimizer_of(lr=on_gpu(0.25))  # of an optimizer made for graphs
    for number in range(1, 257):
        step(recorder, on_gpu(1.0), optimizer)
        if number == 32:
            gpu.run()
    assert gpu.waits == 0
    gpu.run()
    recorder.drain()
    found = lines(recorder, "weights.jsonl")
    assert [line["step"] for line in found] == [8, 16, 32, 64, 128, 192, 256]
    assert {line["lr"] for line in found} == {0.25}
    for line in found:
        assert line["values"][0] == pytest.approx([28.0, -4.0, 140**0.5, 8**0.5])


def test_a_weight_without_a_gradient_waits_for_nothing(gpu: Device, recorder: Recorder) -> None:
    optimizer = optimizer_of()
    optimizer.param_groups[0]["params"][0].grad = None
    for _ in range(8):
        step(recorder, on_gpu(1.0), optimizer)
    assert gpu.waits == 0
    gpu.run()
    recorder.drain()
    assert lines(recorder, "weights.jsonl")[0]["values"][0][3] is None


def test_a_graph_that_is_captured_is_left_alone(gpu: Device, recorder: Recorder) -> None:
    optimizer = optimizer_of(lr=on_gpu(0.25))
    for _ in range(7):
        step(recorder, on_gpu(1.0), optimizer)
    recorder.logged.add(7, {"a": on_gpu(1.0)})
    gpu.capturing = True
    pinned = gpu.pinned
    step(recorder, on_gpu(2.0), optimizer)  # the eighth: weights are due
    recorder.logged.add(8, {"a": on_gpu(2.0)})
    log_values.log(acc=on_gpu(1.0))
    assert not recorder.turns.without_backward(optimizer)
    recorder.backward(float("nan"))
    assert (gpu.waits, gpu.pinned) == (0, pinned)
    gpu.capturing = False
    gpu.run()
    recorder.drain()
    recorder.flush()
    found = lines(recorder, "jsonl")
    assert [(line["step"], line.get("loss")) for line in found] == [
        *((number, 1.0) for number in range(1, 8)),
        (8, None),
    ]


def test_looking_never_initialises_cuda(
    gpu: Device, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that trains on the CPU of a machine with GPUs may fork later and use them there."""
    gpu.initialized = False
    asked: list[str] = []

    def forbidden(*_args: Any, **_kwargs: Any) -> Any:
        asked.append("something")
        raise AssertionError("CUDA would be initialised")

    names = ("is_available", "device_count", "is_current_stream_capturing", "mem_get_info")
    for name in (*names, "max_memory_allocated", "current_device"):
        monkeypatch.setattr(torch.cuda, name, forbidden)
    monkeypatch.setattr(torch.Tensor, "is_pinned", forbidden)
    parameter = torch.arange(8.0).requires_grad_()
    parameter.grad = torch.ones(8)
    optimizer = Optimizer(parameter, 0.1)
    for _ in range(8):
        step(recorder, torch.tensor(1.0), optimizer)
    recorder.drain()
    recorder.flush()
    assert len(lines(recorder, "jsonl")) == 8
    assert len(lines(recorder, "weights.jsonl")) == 1
    assert ends._gpu_memory() == {}
    assert not asked

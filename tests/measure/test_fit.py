"""Records of a traced step -> lines over the batch, moments, a workload: pure."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from workbench.cli.memory import answer
from workbench.cli.memory_view import _training_words
from workbench.describe import Cluster, Strategy
from workbench.describe.job import Job
from workbench.describe.measured import PerBatch, cpu_text
from workbench.describe.recorded import from_document
from workbench.describe.workload import Workload
from workbench.errors import UsageError
from workbench.estimate.host_step import predict_step
from workbench.estimate.memory import least_bytes, needed_bytes, training_memory
from workbench.estimate.step_time import step_time
from workbench.measuring.batches import BatchOption, declared_option, other_batches, usual_value
from workbench.measuring.described import samples_of, workload_of
from workbench.measuring.fit import line, moments
from workbench.measuring.measure import ProbeError, _check_unchanged, _compiled
from workbench.planning.space import default_batch
from workbench.store import measurements
from workbench.store.measurements import Measurement, batch_argument, find, keep, key_of, like
from workbench.store.runs import Store

MIB = 1 << 20


def record(batch: int, *, extra: int = 0, **changes: Any) -> dict[str, Any]:
    """Two equal layers: activations of 1 MiB a sample each, 8 MiB of weights, AdamW."""
    one = batch * MIB
    forward = [one, 2 * one] + [2 * one] * extra
    work = {"operators": 10, "flops": {"matmul": 1e9 * batch}, "moved_bytes": 1e6 * batch}
    rows = [
        row("", "Net", 2 * MIB, 2 * one),
        row("layers", "ModuleList", 2 * MIB, 0, container=True),
        row("layers.0", "Block", MIB, one),
        row("layers.1", "Block", MIB, one),
    ]
    return {
        "device": "cpu",
        "phases": [["forward", len(forward)], ["backward", 3], ["step", 2]],
        "gradient_bytes": [0] * len(forward) + [0, 4 * MIB, 8 * MIB, 8 * MIB, 8 * MIB],
        "other_bytes": [*forward, 3 * one, 2 * one, one, 0, 2 * MIB],
        "saved_bytes": 2 * one,
        "work": dict.fromkeys(("forward", "backward", "step"), work),
        "uncounted": [],
        "roots": [rows],
        "inputs": [[[[batch, 128], "int64"]]],
        "calls": [1],
        "autocast": None,
        "trained": {"elements": 2 * MIB, "bytes": 8 * MIB, "dtypes": {"float32": 2 * MIB}},
        "frozen": {"elements": 0, "bytes": 0, "dtypes": {}},
        "optimizers": [
            {"class": "AdamW", "elements": 2 * MIB, "state_bytes": 16 * MIB, "fused": False}
        ],
        "threads": 2,
        "step_seconds": [0.1 * batch],
        "queued_seconds": [0.0],
        "one_thread_seconds": [],
        **changes,
    }


def row(path: str, kind: str, size: int, saved: int, *, container: bool = False) -> dict[str, Any]:
    return {
        "path": path,
        "class": kind,
        "container": container,
        "parameters": size,
        "trained": size,
        "calls": int(not container),
        "saved_bytes": saved,
        "input_bytes": saved // 4,
    }


def workload(*batches: int) -> Workload:
    return workload_of("train.py", [record(batch) for batch in batches], batches)


def peak_of(work: Workload, strategy: str, ranks: int) -> dict[str, int]:
    parts = dict(training_memory(work, Strategy.parse(strategy, ranks), "cpu").parts)
    parts.pop("framework context")
    return parts


def test_one_process_at_another_batch_is_the_sum_of_its_moment() -> None:
    found = peak_of(replace(workload(4, 2), micro_batch=10), "single", 1)
    # The first moment of backward: three tensors of 10 MiB and no gradient yet.
    assert found == {
        "parameters": 8 * MIB,
        "optimizer states": 16 * MIB,
        "activations: blocks": 30 * MIB,
    }


def test_small_batches_peak_at_the_optimizer_step() -> None:
    found = peak_of(replace(workload(4, 2), micro_batch=1), "single", 1)
    assert found["gradients"] == 8 * MIB
    assert found["optimizer step"] == 2 * MIB


def test_layouts_shard_states_and_gradients_and_bring_their_buffers() -> None:
    work = replace(workload(4, 2), micro_batch=1)
    copied, sharded = peak_of(work, "ddp", 2), peak_of(work, "zero1", 2)
    assert copied["communication buffers"] == 8 * MIB
    assert sharded["optimizer states"] == 8 * MIB
    assert peak_of(work, "fsdp", 2)["parameters"] == 4 * MIB


def test_recompute_keeps_inputs_and_one_block() -> None:
    work = replace(workload(4, 2), micro_batch=10)
    full = training_memory(work, Strategy.parse("single", 1).with_options(recompute="full"), "cpu")
    # 30 MiB less the 20 that the two blocks keep, their inputs of 2.5 each, and one block again.
    assert full.parts["activations: blocks"] == (30 - 20 + 5 + 10) * MIB


def test_the_batch_need_not_be_the_first_dimension() -> None:
    sequence_first = record(4, inputs=[[[[20, 4], "int64"]]], loader_batch=None)
    assert samples_of(sequence_first, 4) == 4
    assert samples_of(sequence_first) == 20
    assert samples_of(record(4, loader_batch=16), 4) == 16


def test_steps_that_do_not_correspond_are_compared_by_phase() -> None:
    first, second = record(4), record(2, extra=3)
    found = moments([first, second], [4, 2], [1, 1])
    assert max(one.other.at(10) for one in found) == 30 * MIB


def held(batch: int, samples: int) -> dict[str, Any]:
    """A step over the same `samples`, whatever the batch: several equal micro-batches."""
    one, count = batch * MIB, samples // batch
    computed = record(batch)["work"]["forward"]
    every = {key: value * count for key, value in computed.items() if key != "flops"}
    every["flops"] = {"matmul": computed["flops"]["matmul"] * count}
    first = [0, 0, *[8 * MIB] * 9]  # the first backward makes the gradients
    return record(
        batch,
        phases=[["forward", 2], ["backward", 9]] * count + [["step", 2]],
        gradient_bytes=[*first, *[8 * MIB] * (11 * (count - 1) + 2)],
        other_bytes=[*[one, 2 * one, 3 * one, *[one] * 8] * count, 0, 2 * MIB],
        saved_bytes=2 * one * count,
        work=dict.fromkeys(("forward", "backward", "step"), every),
        calls=[count],
        step_seconds=[0.1 * batch * count],
    )


@pytest.mark.parametrize("samples", [4, 16])
def test_a_script_that_holds_its_global_batch_is_measured_by_micro_batch(samples: int) -> None:
    work = workload_of("t.py", [held(4, samples), held(2, samples)], [4, 2])
    measured, traced = work.model.measured, work.model.traced
    assert work.accumulate == samples // 4
    assert measured is not None
    assert measured.seconds is not None
    assert measured.seconds.at(10) == pytest.approx(1.0)
    assert measured.forward.flops.at(10) == pytest.approx(1e10)
    assert max(one.other.at(10) for one in measured.moments) == 30 * MIB
    assert traced is not None
    assert traced.saved_bytes == 2 * MIB
    begun = [one for one in measured.moments if one.phase == "forward"]
    assert all(one.gradients == (samples > 4) for one in begun)


def test_one_batch_size_says_so() -> None:
    work = workload(4)
    assert work.model.measured is not None
    assert "one batch size" in work.model.measured.notes[0]
    assert line([40.0], [4]) == PerBatch(per_sample=10.0)


@pytest.mark.parametrize(
    ("wall", "queued", "device", "seconds", "noted"),
    [
        ([1e-3, 64e-3, 64e-3, 1.2e-3], [0.0, 60e-3, 62e-3, 1e-5], "cpu", 1e-3, False),
        ([64e-3, 50e-3, 31e-3], [62e-3, 49e-3, 30e-3], "cpu", 2e-3, True),
        ([1.5e-3], [1e-3], "cpu", 1.5e-3, True),  # it cannot take longer than it did
        ([64e-3, 60e-3, 62e-3], [60e-3, 0.0, 0.0], "NVIDIA L4", 62e-3, False),
    ],
)
def test_steps_that_waited_for_a_core_are_not_what_a_step_takes(
    wall: list[float], queued: list[float], device: str, seconds: float, *, noted: bool
) -> None:
    """Two threads of a small step that wait for each other beside other work: 64 ms for 1 ms."""
    times = {"step_seconds": wall, "queued_seconds": queued, "one_thread_seconds": [2e-3] * 3}
    made = workload_of("t.py", [record(4, device=device, **times)], [4])
    measured = made.model.measured
    assert measured.seconds is not None
    assert measured.seconds.at(4) == pytest.approx(seconds, rel=0.15)
    assert any("kept the cores busy" in note for note in measured.notes) is noted


def test_samples_that_are_no_sequences_are_not_called_tokens() -> None:
    assert workload(4).counts_tokens
    pictures = record(4, inputs=[[[[4, 3, 8, 8], "float32"]]])
    of_pictures = workload_of("t.py", [pictures], [4])
    assert not of_pictures.counts_tokens
    step = predict_step(of_pictures, Strategy.parse("ddp", 2), Cluster(name="here"), None)
    assert step is not None
    rates = step.document()
    assert (rates["samples_per_step"], rates["tokens_per_step"]) == (8, None)
    assert rates["tokens_per_second"] is None


def test_what_a_search_asks_is_what_the_estimate_answers() -> None:
    work = workload(4, 2)
    for name, ranks in (("single", 1), ("ddp", 2), ("fsdp", 4), ("zero2", 2)):
        strategy = Strategy.parse(name, ranks)
        needed = needed_bytes(work, strategy)
        assert needed == training_memory(work, strategy, "cuda").on_card_bytes
        assert least_bytes(work, strategy) <= needed


def test_its_time_on_a_gpu_is_a_roofline_of_its_operators() -> None:
    cluster = Cluster.rented("a100-80gb", 2)
    one = step_time(workload(4, 2), Strategy.parse("ddp", 2), cluster)
    more = step_time(replace(workload(4, 2), micro_batch=8), Strategy.parse("ddp", 2), cluster)
    assert one.model_flops == 2 * 8e9  # two ranks, forward and backward of 4 samples
    assert one.step_seconds < more.step_seconds


def test_an_unknown_optimizer_counts_with_its_own_bytes() -> None:
    changed = [{"class": "Shampoo", "elements": 2 * MIB, "state_bytes": 40 * MIB, "fused": False}]
    work = workload_of("train.py", [record(4, optimizers=changed)], [4])
    assert work.model.measured is not None
    assert "Shampoo counts as adamw with 20 bytes" in work.model.measured.notes[0]
    assert peak_of(work, "single", 1)["optimizer states"] == 40 * MIB


def test_a_workload_comes_back_from_json() -> None:
    work = workload(4, 2)
    assert from_document(Workload, json.loads(json.dumps(asdict(work)))) == work


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--batch-size", "8"], 8),
        (["--batch_size=8"], 8),
        (["--per_device_train_batch_size", "8"], 8),
        (["train.batch_size=8"], None),
        (["batch_size=8"], 8),
        (["-b", "8"], 8),
        (["--eval-batch-size", "8"], None),
        (["--batch-size", "auto"], None),
    ],
)
def test_the_batch_argument_is_known_by_its_usual_names(words: list[str], value: int) -> None:
    found = batch_argument(words)
    assert (found and found.value) == value


def test_a_plan_takes_the_batch_of_a_script_whose_samples_are_no_tokens() -> None:
    work = replace(workload(4, 2), seq_len=1, accumulate=2)
    assert not work.counts_tokens
    assert default_batch(work) == work.micro_batch * work.accumulate == 8
    assert default_batch(work, 16) == 16  # one for each rank
    text = _training_words(answer(_job(work), 0.05))
    assert text.startswith("4 samples x 2 accumulated, fp32")


def _job(work: Workload) -> wb.Job:
    return wb.Job(workload=work, strategy=Strategy.parse("single", 1), cluster="cpu")


def test_a_script_is_known_by_content_and_arguments(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import model\n")
    (tmp_path / "model.py").write_text("width = 1\n")
    store, work = Store(tmp_path / "runs"), workload(4, 2)
    made = Measurement(
        script=str(script),
        arguments=("--width", "2", "--batch-size", "8"),
        workload=work,
        content=measurements.content_hash(script) or "",
        batch_value=8,
        files=(("model.py", measurements.content_hash(tmp_path / "model.py") or ""),),
    )
    keep(store, made)
    assert find(store, script, ["--width", "2", "--batch-size", "8"]) == made
    twice = find(store, script, ["--width", "2", "--lr", "0.1", "--batch-size", "16"])
    assert twice is not None
    assert twice.workload.micro_batch == 8
    assert find(store, script, ["--width", "3", "--batch-size", "8"]) is None
    same = like(store, str(script))
    assert {name: getattr(made.workload, name) for name in same} == same
    assert same["model"].name == made.workload.model.name
    (tmp_path / "model.py").write_text("width = 2\n")
    assert find(store, script, ["--width", "2", "--batch-size", "8"]) is None
    with pytest.raises(UsageError, match="has changed since it was measured"):
        like(store, str(script))


def measured_script(folder: Path, *arguments: str, **changes: Any) -> tuple[Store, Path]:
    """A store that has a measurement of a script with these arguments."""
    script = folder / "train.py"
    if not script.exists():
        script.write_text("pass\n")
    store, content = Store(folder / "runs"), measurements.content_hash(script) or ""
    keep(
        store,
        Measurement(
            script=str(script),
            arguments=arguments,
            workload=workload(4, 2),
            content=content,
            **changes,
        ),
    )
    return store, script


def test_without_its_argument_the_batch_is_the_scripts_default(tmp_path: Path) -> None:
    words = ("--batch-size", "4")
    store, script = measured_script(tmp_path, *words, batch_value=4, batch_default=32)
    found = find(store, script, [])
    assert found is not None
    assert found.workload.micro_batch == 32
    store, script = measured_script(tmp_path, *words, batch_value=4)
    assert find(store, script, []) is None
    assert find(store, script, words) is not None


def test_a_configuration_that_changes_makes_another_key(tmp_path: Path) -> None:
    configuration = tmp_path / "model.yaml"
    configuration.write_text("width: 1")
    words = [f"--config={configuration}"]
    store, script = measured_script(tmp_path, *words)
    assert find(store, script, words) is not None
    configuration.write_text("width: 2")
    assert find(store, script, words) is None


def test_options_whose_names_only_begin_alike_do_change_the_key(tmp_path: Path) -> None:
    store, script = measured_script(tmp_path, "--log-every", "5", "--depth", "2")
    assert find(store, script, ["--depth", "2", "--log-dir=x"]) is not None
    assert find(store, script, ["--logits_chunks", "4", "--depth", "2"]) is None


def test_files_that_a_measurement_names_are_read_as_plain_files_only(tmp_path: Path) -> None:
    pipe = tmp_path / "model.py"
    os.mkfifo(pipe)
    store, script = measured_script(tmp_path, files=(("model.py", "0"), ("/dev/zero", "0")))
    assert find(store, script, []) is None
    assert measurements.content_hash(pipe) is None
    assert measurements.content_hash(Path("/dev/zero")) is None


def test_the_last_of_two_batch_arguments_counts() -> None:
    found = batch_argument(["--batch-size", "8", "--batch-size", "16"])
    assert found is not None
    assert (found.position, found.value) == (3, 16)


def test_a_step_that_was_timed_on_another_cpu_is_not_this_ones(tmp_path: Path) -> None:
    here = Cluster(name="here", cpu_name="Any CPU @ 2 GHz", cpu_cores=8)
    alone, batches = Strategy.parse("single", 1), [4, 2]
    own = workload_of("train.py", [record(4), record(2)], batches, cpu=cpu_text(here))
    step = predict_step(own, alone, here, None)
    assert step is not None
    assert "its range (x0.85 to x1.3) is chosen" in step.assumptions[0]
    assert predict_step(own, alone, replace(here, cpu_cores=4), None) is None


def test_a_roofline_says_that_its_range_is_chosen() -> None:
    step = step_time(workload(4, 2), Strategy.parse("single", 1), Cluster.rented("a100-80gb", 1))
    assert any("its range (x0.8 to x2) is chosen" in one for one in step.assumptions)


def test_what_was_measured_is_not_called_assumed() -> None:
    work = workload(4, 2)
    assert work.model.measured is not None
    assert Job.of(work.model, gpu="h100").notes == ()
    assert "torchtune" in Job.of(work.model, gpu="h100", trainer="torchtune").notes[0]
    said = training_memory(replace(work, precision="bf16"), Strategy.parse("single", 1), "cuda")
    assert "attention, loss and kernels as measured" in said.assumptions
    assert "measured in fp32: scaled by the bytes of a value" in said.assumptions
    assert not [one for one in said.assumptions if "norms" in one]


def test_an_incomplete_batch_counts_with_its_own_samples() -> None:
    assert samples_of(record(4, loader_batch=16, short_batch=8), 16) == 8


def test_a_batch_that_the_script_cuts_into_micro_batches_counts_with_its_pieces() -> None:
    phases = [["forward", 2], ["backward", 9]] * 2 + [["step", 2]]
    assert samples_of(record(8, loader_batch=16, phases=phases, calls=[2])) == 8
    assert samples_of(record(16, loader_batch=16, phases=phases, calls=[2])) == 16


@pytest.mark.parametrize(
    ("text", "arguments", "compiles"),
    [
        ("model = torch.compile(model)", [], True),
        ("model.compile()", [], True),
        ("pattern = re.compile('x')", [], False),
        ("pass", ["--torch_compile", "True"], True),
    ],
)
def test_a_script_that_compiles_is_told_that_the_probe_does_not(
    text: str, arguments: list[str], *, compiles: bool, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    assert bool(_compiled(script, {}, arguments)) == compiles


def test_a_script_that_is_edited_while_it_is_measured_is_not_kept(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("width = 1")
    (tmp_path / "model.py").write_text("depth = 1")
    before = measurements.content_hash(script)
    files = {"model.py": measurements.content_hash(tmp_path / "model.py") or ""}
    _check_unchanged(script, before, files)
    (tmp_path / "model.py").write_text("depth = 2")
    with pytest.raises(ProbeError, match=r"model\.py has changed while it was measured"):
        _check_unchanged(script, before, files)


def test_options_without_effect_do_not_change_the_key(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("pass\n")
    plain = key_of(script, ["--depth", "4"])
    assert key_of(script, ["--lr", "1", "--depth", "4", "--bs=2", "--seed=3"]) == plain
    assert key_of(script, ["--depth", "5"]) != plain


def test_another_batch_comes_from_the_argument_then_the_option_then_the_loader(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    script.write_text("parser.add_argument('--batch_size', type=int, default=8)\n")
    given = [one.arguments for one in other_batches(script, ["--batch_size", "8"], 8, None)]
    assert given == [("--batch_size", "4")]
    ways = list(other_batches(script, ["--x"], 8, 8))
    assert ways[0].arguments == ("--x", "--batch_size=4")
    assert (ways[1].arguments, ways[1].loader) == (("--x",), (8, 4))
    assert usual_value(script, []) == 8
    script.write_text("batch_size = 8\nexec(open('configurator.py').read())\n")
    assert declared_option(script) == BatchOption(name="--batch_size", default=8)


@pytest.mark.parametrize(
    "imported",
    ["from ours.cli import get", "from ours import cli", "import ours.cli", "from ours import get"],
)
def test_the_batch_option_may_be_declared_in_a_module_of_the_user(
    imported: str, tmp_path: Path
) -> None:
    script, package = tmp_path / "train.py", tmp_path / "ours"
    package.mkdir()
    package.joinpath("__init__.py").write_text("from .cli import get\n")
    package.joinpath("cli.py").write_text(
        "import argparse\ndef get():\n    parser = argparse.ArgumentParser()\n"
        "    parser.add_argument('-b', '--per-gpu-batch', type=int, default='12')\n"
        "    return parser.parse_args()\n"
    )
    script.write_text(f"{imported}\nargs = {'cli.' if 'import cli' in imported else ''}get()\n")
    assert declared_option(script) == BatchOption(name="--per-gpu-batch", default=12)
    inner = package / "main.py"  # run as a module: python -m ours.main
    inner.write_text("from ours.cli import get\nget()\n")
    assert declared_option(inner) == BatchOption(name="--per-gpu-batch", default=12)

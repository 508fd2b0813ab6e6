"""The memory calculator without a browser: messages in, documents out."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("anywidget", reason="the lab extra is not installed")

from workbench_widgets import MemoryCalculator, Workbench
from workbench_widgets.job_form import JOB, JobForm
from workbench_widgets.memory.fields import fields
from workbench_widgets.memory.figure import figure
from workbench_widgets.memory.simulation import POINTS_MAX, timeline
from workbench_widgets.memory.switches import advice

import workbench as wb
from tests.widgets.calculators import move, until
from workbench.describe import catalog
from workbench.describe.job import Job, options

CONFIG = {
    "model_type": "llama",
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "intermediate_size": 1376,
    "vocab_size": 32_000,
}


@pytest.fixture
def calculator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[MemoryCalculator]:
    monkeypatch.chdir(tmp_path)
    made = MemoryCalculator(model="llama-3-8b", gpu="h100-sxm", gpus=8, strategy="fsdp")
    yield made
    made.close()


def test_the_constructor_sets_the_controls(calculator: MemoryCalculator) -> None:
    values = calculator.controls["values"]
    assert (values["model"], values["gpu"], values["gpus"]) == ("llama-3-8b", ["h100-sxm"], 8)
    assert values["strategy"] == "fsdp"
    assert calculator.estimate == wb.training_memory(
        calculator.choice.workload(),
        wb.Strategy.parse("fsdp", 8),
        wb.Cluster.rented(gpu="h100-sxm", gpus=8),
    )


def test_three_numbers_and_parts_that_add_up(calculator: MemoryCalculator) -> None:
    shown = calculator.figure
    assert shown["allocated"] < shown["reserved"] < shown["on_card"]
    assert sum(part["bytes"] for part in shown["parts"]) == shown["on_card"]
    inside = sum(part["bytes"] for part in shown["parts"] if not part["outside"])
    assert inside == shown["allocated"]
    assert max(shown["peaks"], key=lambda peak: peak["bytes"])["name"] == shown["peak"]
    card = shown["cards"][0]
    assert card["free"] == card["bytes"] - shown["on_card"]
    assert calculator.advice["why"][0].startswith("The peak is")
    assert not any("--" in text for text in calculator.advice["why"])  # controls, no flags


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"modle": "gpt2"}, TypeError, "Did you mean 'model'"),
        ({"model": "lama-3-8b"}, wb.UnknownNameError, "llama-3-8b"),
        ({"gpu": "h1000"}, wb.UnknownNameError, "h100"),
        ({"strategy": "fspd"}, wb.UnknownNameError, "fsdp"),
        ({"strategy": "fsdp4-tp4", "gpus": 8}, wb.UsageError, "16"),
        ({"strategy": "fsdp4-tp2", "nodes": 3}, wb.UsageError, "needs 8 GPUs"),
        ({"quantization": "nf4"}, wb.UsageError, "lora_rank"),
        ({"precision": "bf17"}, wb.UnknownNameError, "bf16"),
    ],
)
def test_the_constructor_refuses_in_words(
    given: dict, error: type[Exception], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=words):
        MemoryCalculator(**given)


def test_names_of_many_kinds_are_understood() -> None:
    choice = JobForm.from_options(
        {"model": "meta-llama/Meta-Llama-3-8B", "gpu": ["H100", "NVIDIA B200"], "gpus": 8}
    )
    assert (choice["model"], choice["gpu"][0], choice["strategy"]) == (
        "llama-3-8b",
        "h100-sxm",
        "ddp",
    )
    combined = JobForm.from_options({"strategy": "fsdp2-tp4", "gpus": 8})
    assert (combined["strategy"], combined["tp"]) == ("fsdp", 4)
    assert combined.job().strategy == wb.Strategy.parse("fsdp2-tp4", 8)
    assert JobForm.from_options({})["strategy"] == "single"


def test_controls_that_nobody_moved_follow_the_others() -> None:
    form = JobForm.from_options({"model": "llama-3-8b", "kernels": "megatron"})
    assert (form["seq_len"], form["strategy"], form["gradient_bytes"]) == (2048, "single", 4)
    other = form.changed({"model": "gpt2", "gpus": 4, "kernels": "fused"})
    assert (other["seq_len"], other["strategy"], other["gradient_bytes"]) == (1024, "ddp", None)
    own = other.changed({"gradient_bytes": "2"})
    assert own.job().workload.kernels.gradient_bytes == 2
    assert own.changed({"kernels": "fused"}).job() == other.job()


def test_the_assumed_trainer_is_shown(calculator: MemoryCalculator) -> None:
    assumed = calculator.figure["assumptions"]
    assert [one for one in assumed if one.startswith("Assuming plain PyTorch or Accelerate")]


def test_the_controls_show_what_a_trainer_decides() -> None:
    asked = {"gpu": "h100", "trainer": "torchtune"}
    form, job = (
        JobForm.from_options({"model": "llama-3-8b", **asked}),
        Job.of("llama-3-8b", **asked),
    )
    assert (form.job(), form.job().trainer) == (job, job.trainer)
    plain = JobForm.from_options({"model": "llama-3-8b"}).document()
    decided = {name for name, value in form.document().items() if value != plain[name]}
    assert decided > {"trainer"}
    assert all(form.document()[name] == getattr(job.workload, name) for name in decided & {"loss"})


def test_hsdp_shards_inside_a_node_and_replicates_between_them() -> None:
    asked = {"gpu": "h100", "gpus": 8, "nodes": 4, "strategy": "hsdp"}
    job = Job.of("llama-3-8b", **asked)
    assert (job.strategy.dp_replicate, job.strategy.dp_shard) == (4, 8)
    assert JobForm.from_options({"model": "llama-3-8b", **asked}).job() == job


def test_a_move_is_one_small_message(
    calculator: MemoryCalculator, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[dict] = []
    monkeypatch.setattr(calculator, "_send", lambda message, buffers=None: sent.append(message))
    before = calculator.figure["allocated"]
    move(calculator, "page:7", seq_len=4096)
    assert len(sent) == 1
    assert len(json.dumps(sent[0])) < 6_000
    assert calculator.answered == "page:7"
    assert calculator.figure["allocated"] > before
    moves = calculator.figure["at"]
    until(lambda: calculator.advice["at"] == moves, "the advice follows")
    assert len(sent) == 2
    assert len(json.dumps(sent[1])) < 16_000


def test_a_bad_value_keeps_the_last_good_figure(calculator: MemoryCalculator) -> None:
    good = calculator.figure
    move(calculator, quantization="nf4")
    assert calculator.problem["field"] == "quantization"
    assert "lora_rank" in calculator.problem["message"]
    assert calculator.figure == good
    assert calculator.controls["values"]["quantization"] == "nf4"  # what was typed stands
    assert "lora_rank" in repr(calculator)
    move(calculator, lora_rank=16)
    assert calculator.problem == {}
    assert calculator.figure["on_card"] < good["on_card"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seq_len": None}, "Enter a whole number"),
        ({"seq_len": 1.5}, "whole number"),
        ({"micro_batch": 0}, "at least 1"),
        ({"micro_batch": "four"}, "whole number from 1 to 16,777,216, not 'four'"),
        ({"seq_len": "4k"}, "Write it in full: 4000 or 4096"),
        ({"gpus": 10**9}, "at most 128"),
        ({"model": "nothing-like-it"}, "Unknown model"),
        ({"model": "/nowhere/config.json"}, "cannot be read"),
        ({"gpu": []}, "Choose a GPU"),
        ({"gpu": ["abacus"]}, "Unknown"),
        ({"tp": 3}, "do not divide"),
        ({"strategy": ["list"]}, "strategy"),
        ({"kernels": {"norm": "fused"}}, "kernels"),
        ({"compiled": "perhaps"}, "must be True or False, not 'perhaps'"),
        ({"compiled": None}, "compiled is empty. Choose a value."),
        ({"tp": [2]}, "tp must be a whole number"),
        ({"strategy": "hsdp4-tp2"}, "Unknown strategy 'hsdp4-tp2'"),
        ({"strategy": "fsdp4-tp2", "nodes": None}, "nodes is empty"),
        ({"strategy": "fsdp4-tp2", "nodes": 3, "gpus": 2}, "needs 8 GPUs, not 6"),
    ],
)
def test_every_bad_value_is_said_in_its_control(
    calculator: MemoryCalculator, changes: dict, words: str
) -> None:
    move(calculator, **changes)
    assert words in calculator.problem["message"]
    assert calculator.problem["field"] == next(iter(changes))


def test_a_hidden_control_refuses_nothing(calculator: MemoryCalculator) -> None:
    move(calculator, tp=None)
    assert "tp is empty" in calculator.problem["message"]
    move(calculator, strategy="hsdp")
    assert calculator.problem == {}
    move(calculator, model="mixtral-8x7b", strategy="fsdp", tp=1, ep=2)
    move(calculator, model="llama-3-8b")
    assert "ep" in calculator.controls["hidden"]
    assert calculator.problem == {}


def test_nonsense_messages_are_left_alone(calculator: MemoryCalculator) -> None:
    before = calculator.figure
    for message in ("text", None, {"type": "change"}, {"type": "change", "changes": [1]}, {}):
        calculator._on_message(calculator, message, [])
    move(calculator, __class__="x", unknown=3)
    assert calculator.figure["allocated"] == before["allocated"]


def test_controls_without_effect_are_hidden(calculator: MemoryCalculator) -> None:
    assert "tp" not in calculator.controls["hidden"]
    assert {"ep", "schedule", "lora_targets"} <= set(calculator.controls["hidden"])
    move(calculator, strategy="single", lora_rank=8)
    hidden = set(calculator.controls["hidden"])
    assert {"gpus", "nodes", "tp", "pp", "cp"} <= hidden
    assert "lora_targets" not in hidden


def test_every_control_exists_once_and_offers_the_default() -> None:
    shown = [field for group in fields() for field in group["fields"]]
    assert sorted(field["name"] for field in shown) == sorted(JOB)
    assert options().keys() - JOB.keys() == {"cpu"}  # every other option of a job is a control
    default = JobForm().document()
    for field in shown:
        if field["kind"] in {"select", "search"}:
            assert default[field["name"]] in [option["value"] for option in field["options"]]


@pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp", "zero1", "zero3", "tp", "pp"])
def test_every_switch_sets_its_controls(strategy: str) -> None:
    gpus = 1 if strategy == "single" else 4
    choice = JobForm.from_options(
        {"model": "llama-3-8b", "gpus": gpus, "strategy": strategy, "micro_batch": 4}
    )
    before = figure(choice)["on_card"]
    found = advice(choice)
    assert found["switches"]
    for row in found["switches"]:
        assert row["changes"], row["name"]
        after = figure(choice.changed(row["changes"]))
        assert before - after["on_card"] == row["saves"], row["name"]


def test_ways_to_fit_begin_with_one_gpu_and_fit() -> None:
    choice = JobForm.from_options({"model": "llama-3-8b"})
    ways = advice(choice)["ways"]
    assert ways[0]["gpus"] == 1
    assert [way["gpus"] for way in ways] == sorted(way["gpus"] for way in ways)
    for way in ways:
        if way["changes"]:
            assert figure(choice.changed(way["changes"]))["fits"], way["name"]


def test_a_config_file_is_a_model(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    by_file = JobForm.from_options({"model": str(path)})
    assert by_file.model().layers == 4
    assert JobForm.from_options({"model": str(tmp_path)}).model() == by_file.model()
    path.write_text(json.dumps({**CONFIG, "num_hidden_layers": 6}))
    assert by_file.model().layers == 6


def test_pipeline_stages_and_doubtful_cards() -> None:
    job = {"model": "llama-3-8b", "gpus": 8, "strategy": "pp", "accumulate": 8}
    shown = figure(JobForm.from_options(job))
    assert [stage["stage"] for stage in shown["stages"]] == list(range(8))
    assert max(stage["bytes"] for stage in shown["stages"]) == shown["allocated"]
    doubtful = [gpu.id for gpu in catalog.gpus() if "memory_bytes" in gpu.unverified]
    assert figure(JobForm.from_options({"gpu": doubtful[0]}))["cards"][0]["unverified"]


def test_text_for_pages_without_javascript(calculator: MemoryCalculator) -> None:
    text = repr(calculator)
    for words in ("parameters", "= allocated", "= reserved", "= on the card", "Highest:", "fits"):
        assert words in text
    data = calculator._repr_mimebundle_()
    data = data[0] if isinstance(data, tuple) else data
    assert data["text/plain"] == text  # whole, not cut after 110 characters
    assert "application/vnd.jupyter.widget-view+json" in data


def test_timeline_keeps_the_peak_and_stays_small() -> None:
    moments = [(at, {"parameters": 10 << 20, "activations": at << 20}) for at in range(1999)]
    moments[1001] = (1001, {"parameters": 10 << 20, "activations": 9000 << 20})
    drawn = timeline(moments, [(0, "forward")])
    assert len(drawn["event"]) <= POINTS_MAX
    assert max(drawn["parts"]["activations"]) == 9000
    assert len(json.dumps(drawn)) < 30_000


@pytest.mark.full
@pytest.mark.slow
def test_simulation_stands_beside_the_closed_form(calculator: MemoryCalculator) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    states: list[str] = []
    calculator.observe(lambda change: states.append(change["new"]["state"]), names="exact")
    move(calculator, model="gpt2", strategy="single", seq_len=128)
    calculator._on_message(calculator, {"type": "simulate"}, [])
    calculator._on_message(calculator, {"type": "simulate"}, [])  # a double click is one
    until(lambda: states and states[-1] != "running", "an answer", 200)
    assert states[-1] == "done", calculator.exact
    row = calculator.exact["rows"][0]
    assert 0.8 < row["closed"] / row["exact"] < 1.25
    assert calculator.exact["values"]["model"] == "gpt2"
    assert len(json.dumps(calculator.exact)) < 64_000


def test_simulation_can_be_cancelled(calculator: MemoryCalculator) -> None:
    calculator._on_message(calculator, {"type": "simulate"}, [])
    calculator._on_message(calculator, {"type": "cancel"}, [])
    until(lambda: calculator.exact["state"] == "unavailable", "the end")
    assert calculator.exact["says"] == "Cancelled."
    until(lambda: not _threads("workbench-simulation"), "the thread's end")


def test_what_cannot_be_simulated_says_so(calculator: MemoryCalculator) -> None:
    pytest.importorskip("torch")
    move(calculator, model="deepseek-v3")
    calculator._on_message(calculator, {"type": "simulate"}, [])
    until(lambda: calculator.exact["state"] == "unavailable", "the sentence", 120)
    assert "closed form" in calculator.exact["says"]


def test_the_workbench_has_one_folded(tmp_path: Path) -> None:
    bench = Workbench(store=tmp_path, open=None)
    place = [*bench._makers].index("Memory")
    assert bench._tabs.children[place].children == ()
    bench._tabs.selected_index = place
    (made,) = bench._tabs.children[place].children
    assert isinstance(made, MemoryCalculator)
    bench.open_tab("Launch")
    assert bench.open_tab("Memory") == (made,)
    bench.close()
    assert made.comm is None


def _threads(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def test_what_the_hardware_lacks_stands_under_the_headline() -> None:
    lacking = MemoryCalculator(model="gpt2", gpu="t4", precision="bf16")
    assert "has no bf16 matmuls. Use precision fp16" in repr(lacking)
    converted = MemoryCalculator(model="gpt2", gpu="t4")
    assert "has no bf16 matmuls: fp16 is assumed" in repr(converted)
    offloaded = MemoryCalculator(
        model="llama-3-8b", gpu="a100", gpus=8, strategy="zero3", offload=["optimizer"]
    )
    assert "in the host memory of a node" in repr(offloaded)


@pytest.mark.parametrize("name", ["dp2-fsdp4", "dp2-fsdp2-tp2", "dp2-zero3x4"])
def test_a_name_with_replicas_and_shards_stays_what_it_is(name: str) -> None:
    form = JobForm.from_options({"model": "llama-3-8b", "gpu": "h100", "strategy": name})
    wanted = Job.of("llama-3-8b", gpu="h100", gpus=8, strategy=name)
    assert form.job().strategy == wanted.strategy

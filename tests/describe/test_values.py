"""Strategy names, workloads, and the first memory estimate."""

from __future__ import annotations

from typing import Any

import pytest

import workbench as wb
from workbench.describe.option import declared
from workbench.estimate import context


@pytest.mark.parametrize(
    ("name", "processes", "degrees"),
    [
        ("single", 1, {"dp_replicate": 1}),
        ("ddp", 4, {"dp_replicate": 4}),
        ("fsdp", 8, {"dp_shard": 8, "reshard_after_forward": True}),
        ("fsdp-grad-op", 8, {"dp_shard": 8, "reshard_after_forward": False}),
        ("hsdp", 8, {"dp_replicate": 2, "dp_shard": 4}),
        ("zero2", 4, {"dp_shard": 4, "zero_stage": 2}),
        ("tp", 2, {"tp": 2}),
        ("dp2-tp2", 4, {"dp_replicate": 2, "tp": 2}),
        ("fsdp4-tp2", 8, {"dp_shard": 4, "tp": 2}),
        ("PP2-dp2", 4, {"pp": 2, "dp_replicate": 2}),
    ],
)
def test_names_mean_degrees(name: str, processes: int, degrees: dict[str, object]) -> None:
    strategy = wb.Strategy.parse(name, processes)
    assert strategy.options() | degrees == strategy.options()
    assert strategy.world_size == processes


@pytest.mark.parametrize(
    ("name", "processes", "sentence"),
    [
        ("dpp", 2, "Did you mean .*ddp"),
        ("single", 2, "runs 1 process"),
        ("dp2-tp2", 3, "needs 4 processes, not 3"),
        ("ddp", 0, "at least 1"),
        ("dp0-tp2", 2, "at least 1"),
        ("tp2-tp2", 4, "twice"),
        ("hsdp", 2, "at least 4"),
    ],
)
def test_nonsense_is_refused_with_a_sentence(name: str, processes: int, sentence: str) -> None:
    with pytest.raises(wb.UsageError, match=sentence):
        wb.Strategy.parse(name, processes)


def workload(**extra: object) -> wb.Workload:
    shape = {
        "layers": 2,
        "hidden": 128,
        "heads": 2,
        "mlp_hidden": 512,
        "vocab": 256,
    }
    return wb.Workload(
        **({"model": wb.Model(name="m", **shape), "seq_len": 128, "micro_batch": 4} | extra)
    )


def test_workload_checks_its_fields() -> None:
    with pytest.raises(wb.UsageError, match="Unknown precision 'fp64'"):
        workload(precision="fp64")
    with pytest.raises(wb.UsageError, match="accumulate must be at least 1"):
        workload(accumulate=0)
    assert workload(accumulate=2).tokens_per_step(8) == 128 * 4 * 2 * 8


def test_detected_host_has_cores_and_memory() -> None:
    host = wb.detect_host()
    assert host.cpu_cores >= 1
    assert host.memory_bytes > 2**28
    assert host.device == ("cuda" if host.gpus else "cpu")


def test_an_option_has_one_flat_name_whichever_library_holds_it() -> None:
    options = {"comm_hook": "fp16", "schedule": "gpipe", "state_dict": "full", "gather_bucket": 7}
    strategy = wb.Strategy.parse("pp2-dp2", 4).with_options(**options)
    held = (strategy.ddp.comm_hook, strategy.pipeline.schedule, strategy.fsdp.state_dict)
    assert (*held, strategy.deepspeed.gather_bucket) == tuple(options.values())
    assert strategy.options() | options == strategy.options()
    assert wb.Strategy.recorded(strategy.options()) == strategy
    assert strategy.options_beside_name() == options
    assert set(options) - {"gather_bucket"} <= set(declared(wb.Strategy))
    with pytest.raises(wb.UsageError, match="comm hook"):
        strategy.with_options(comm_hook="fp17")
    with pytest.raises(wb.UsageError, match="schedule"):
        strategy.with_options(shedule="gpipe")


def test_a_rank_is_worked_out_once_and_passed_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """What all parts of an estimate share is not worked out again by each of them."""
    calls: list[object] = []

    def counted(*inputs: wb.Workload | wb.Strategy) -> context.StateWidths:
        calls.append(inputs)
        return widths(*inputs)  # pyright: ignore[reportArgumentType]

    widths = context.widths
    monkeypatch.setattr(context, "widths", counted)
    model = wb.Model.catalog("llama-3-8b")
    work = wb.Workload(model=model, seq_len=4096, accumulate=8)
    for strategy in ("fsdp", "zero2", "pp4-dp2", "tp8"):
        calls.clear()
        wb.training_memory(work, wb.Strategy.parse(strategy, 8))
        assert len(calls) == 1, strategy


@pytest.mark.parametrize(
    ("strategy", "sentence"),
    [
        ("tp4", "For all of them: fsdp2-tp4 or dp2-tp4"),
        ("tp3", "Change gpus, nodes or a degree"),
        (wb.Strategy.parse("tp", 4), "Change gpus, nodes or a degree"),
        ("fsdp2-tp2", "Change gpus, nodes or a degree"),
        ("ep8", "for example fsdp8-ep8"),
    ],
)
def test_a_layout_for_other_gpus_comes_with_one_for_these(
    strategy: str | wb.Strategy, sentence: str
) -> None:
    with pytest.raises(wb.UsageError, match=sentence):
        wb.Job.of("mixtral-8x7b", gpu="h100", gpus=8, strategy=strategy)
    for name in ("fsdp2-tp4", "dp2-tp4", "fsdp8-ep8"):
        assert wb.Job.of("mixtral-8x7b", gpu="h100", gpus=8, strategy=name).strategy.name == name


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("attention_mask", "false?", "attention_mask must be True or False, not 'false\\?'"),
        ("attention_mask", 2, "must be True or False, not 2"),
        ("compiled", float("nan"), "must be True or False, not nan"),
        ("sequence_parallel", "8", "must be True or False"),
        ("cpu", [], r"must be True or False, not \[\]"),
        ("lora_targets", 3, "several values, or a text with commas, not 3"),
        ("seq_len", [1], r"seq_len must be a number, not \[1\]"),
        ("network", 100, "network must be a text, not 100"),
        ("trainer", True, "trainer must be a text, not True"),
        ("quantization", [], "quantization must be a text"),
        ("kernels", "", "Unknown kernels ''"),
        ("model", " ", "name is empty. Give one of the catalog"),
        ("strategy", "0", "Unknown strategy '0'"),
        ("strategy", "dp0", "dp_replicate must be at least 1, not 0"),
        ("micro_batch", True, "micro_batch must be a whole number, not True"),
        ("recompute_parts", (), "recompute_parts is empty. Name some of op, attention"),
    ],
)
def test_what_is_no_value_of_an_option_is_refused(name: str, value: Any, said: str) -> None:
    given = {"model": "gpt2", "gpu": "h100", "recompute": "selective"} | {name: value}
    with pytest.raises(wb.UsageError, match=said):
        wb.Job.of(**given)


def test_a_switch_is_also_refused_where_it_is_set_directly() -> None:
    with pytest.raises(wb.UsageError, match="bucket_views must be True or False, not 'no'"):
        wb.Strategy.parse("ddp", 2).with_options(bucket_views="no")
    job = wb.Job.of("gpt2", gpu="h100", attention_mask="true", compiled="0")
    assert (job.workload.attention_mask, job.workload.kernels.compiled) == (True, False)


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    job = wb.Job.of("gpt2", gpu="h100", micro_batch=numpy.int64(4), gpus=numpy.int32(2))
    assert job == wb.Job.of("gpt2", gpu="h100", micro_batch=4, gpus=2)
    assert type(job.workload.micro_batch) is int

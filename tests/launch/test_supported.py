"""What the launcher refuses, each in one sentence, and whose files it writes for the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from workbench.describe.option import declared
from workbench.describe.supported import check_supported, is_counted, scopes, why_not
from workbench.errors import UsageError
from workbench.launching.prepare import accelerate_config

TOGETHER = ("optimizer", "parameters")
GPT = frozenset({"tp", "cp", "pp", "ddp"})


@pytest.mark.parametrize(
    ("strategy", "processes", "options", "splits", "device", "said"),
    [
        ("fsdp", 2, {"recompute": "selective"}, GPT, "cpu", "up to the script"),
        ("ddp", 2, {"recompute": "full"}, None, "cpu", "sharded strategies only"),
        ("fsdp", 2, {"offload": ("optimizer",)}, GPT, "cpu", "together"),
        ("ddp", 2, {"offload": TOGETHER}, GPT, "cpu", "an option of FSDP and DeepSpeed"),
        ("fsdp", 2, {"comm_hook": "fp16"}, GPT, "cpu", "an option of DDP"),
        ("ddp", 2, {"comm_hook": "fp16"}, None, "cpu", "DistributedDataParallelKwargs"),
        ("zero1", 2, {"engine": "torch"}, None, "cpu", "Construct ZeroRedundancyOptimizer"),
        ("zero2", 2, {"engine": "torch"}, GPT, "cpu", "is for zero1"),
        ("ddp", 2, {"engine": "fsdp1"}, GPT, "cpu", "is for fsdp"),
        ("hsdp", 4, {"engine": "fsdp1"}, GPT, "cpu", "between machines"),
        ("fsdp", 2, {"engine": "fsdp1", "offload": TOGETHER}, GPT, "cpu", "accelerator device"),
        ("fsdp", 2, {"engine": "fsdp1", "state_dict": "full"}, GPT, "cpu", "state dict sharded"),
        ("fsdp", 2, {"engine": "fsdp1", "meta_init": True}, GPT, "cpu", "available devices"),
        ("fsdp", 2, {"wrap_min_parameters": 10}, GPT, "cpu", "an option of FSDP1"),
        ("fsdp", 2, {"offload": ("activations",)}, GPT, "cuda", "recompute full"),
        ("fsdp", 2, {"offload": TOGETHER, "offload_device": "nvme"}, GPT, "cpu", "or zero3"),
        ("zero2", 2, {"offload": TOGETHER}, GPT, "cpu", "in ZeRO-3"),
        ("zero1", 2, {"offload": ("optimizer",), "offload_device": "nvme"}, GPT, "cuda", "NVMe"),
        ("zero3", 2, {"offload": TOGETHER, "offload_device": "nvme"}, GPT, "cpu", "libaio"),
        (
            "ddp",
            2,
            {"offload_device": "nvme"},
            GPT,
            "cuda",
            "goes with offload; 'ddp' has offload none",
        ),
        ("zero2", 2, {"live_parameters": 5}, GPT, "cpu", "option of DeepSpeed's ZeRO-3"),
        ("zero2", 2, {"sync_every_micro_batch": False}, GPT, "cpu", "whatever is asked"),
        ("zero3", 2, {"meta_init": True}, GPT, "cpu", "an option of FSDP"),
        ("zero1x2-tp2", 4, {}, GPT, "cpu", "shards with FSDP"),
        ("zero1x2-tp2-pp2", 8, {}, GPT, "cpu", "Use fsdp2-tp2-pp2, or"),
        ("zero1x2-dp2", 4, {}, GPT, "cpu", "over all data-parallel ranks"),
        ("ddp", 2, {"schedule": "gpipe"}, GPT, "cpu", "goes with pp"),
        ("tp", 2, {}, frozenset(), "cpu", "this recipe does not"),
        ("dp2-tp2", 4, {}, None, "cuda", "dp_shard_size"),
        ("cp", 2, {}, None, "cpu", "flash attention"),
        ("cp", 2, {"cp_method": "ulysses"}, None, "cuda", "exchanges heads"),
        ("dp2-ep2", 2, {}, GPT, "cpu", "spreads its own experts"),
    ],
)
def test_what_cannot_be_started_is_refused(
    strategy: str,
    processes: int,
    options: dict[str, Any],
    splits: frozenset[str] | None,
    device: str,
    said: str,
) -> None:
    asked = wb.Strategy.parse(strategy, processes).with_options(**options)
    with pytest.raises(UsageError, match=said):
        check_supported(asked, splits, device)
    assert said in why_not(asked, splits=splits, device=device)


def other_value(option: str) -> Any:
    """One that is not the option's default."""
    one = declared(wb.Strategy)[option]
    if one.option.choices:
        value = next(value for value in one.option.choices if value != one.default)
        return (value,) if one.option.split else value
    return not one.default if one.is_switch else 2


@pytest.mark.parametrize("name", ["single", "ddp", "fsdp", "hsdp", "zero1", "zero3"])
@pytest.mark.parametrize("option", [name for name, one in scopes().items() if not one.axis])
def test_estimates_and_launches_follow_one_declaration(name: str, option: str) -> None:
    """What an estimate refuses a launch refuses with the same sentence; what only a launch
    refuses is for estimates alone, or the script does it: the sentence says so."""
    given = {option: other_value(option)}
    changed = wb.Strategy.parse(name, 1 if name == "single" else 4).with_options(**given)
    estimated, launched = "", why_not(changed, splits=GPT)
    try:
        wb.Job.of("gpt2", gpu="h100", strategy=changed, **given)
    except UsageError as error:
        estimated = str(error)
    if estimated:
        assert estimated == launched
    elif "nothing sets it" in launched:
        assert "option of estimates" in launched or "an estimate counts it" in launched


@pytest.mark.parametrize(
    ("name", "offload", "counted"),
    [
        ("single", ("optimizer",), True),  # torchao's CPUOffloadOptimizer
        ("single", ("optimizer", "parameters"), True),
        ("ddp", ("activations",), True),  # torch's save_on_cpu
        ("ddp", ("optimizer", "activations"), False),
        ("zero1x2-tp2", ("optimizer",), True),  # Megatron-LM's own
    ],
)
def test_offload_by_the_script_itself(
    name: str, offload: tuple[str, ...], *, counted: bool
) -> None:
    given = {"strategy": name, "gpus": 1 if name == "single" else 4, "offload": offload}
    if not counted:
        with pytest.raises(UsageError, match=r"nothing sets it for .ddp.\. Leave it out\.$"):
            wb.Job.of("gpt2", gpu="h100", **given)
        return
    job = wb.Job.of("gpt2", gpu="h100", **given)
    assert job.strategy.offload == offload
    if "tp" not in name:
        assert "the script does it itself, and an estimate counts it" in why_not(job.strategy)


def test_what_a_file_says_of_another_stage_or_engine_does_not_count() -> None:
    """A configuration of ZeRO-2 may hold stage3_max_live_parameters, which nothing reads."""
    zero2, zero3 = (wb.Strategy.parse(name, 2) for name in ("zero2", "zero3"))
    assert not is_counted(zero2, "live_parameters", 5)
    assert is_counted(zero3, "live_parameters", 5)
    assert not is_counted(wb.Strategy.parse("fsdp", 2), "wrap_min_parameters", 5)


def test_a_refused_launch_leaves_nothing_behind(tmp_path: Path) -> None:
    for options in ({"recompte": "full"}, {"offload": ("activations",)}):
        with pytest.raises(UsageError):
            wb.launch(
                "gpt", strategy="fsdp", processes=2, cpu=True, store=tmp_path, options=options
            )
    assert not list(tmp_path.iterdir())


def test_static_graph_and_accumulation_are_refused_by_the_recipe(tmp_path: Path) -> None:
    asked = wb.Strategy.parse("ddp", 2).with_options(static_graph=True)
    with pytest.raises(UsageError, match="--static-graph fails"):
        wb.request("gpt", ["--accumulate", "2"], strategy=asked, cpu=True, store=tmp_path)


def config_of(asked: wb.Request) -> str:
    (text,) = (text for path, text in asked.config_files.items() if path.endswith(".yaml"))
    return text


def test_a_strategy_value_is_launched_as_it_is(tmp_path: Path) -> None:
    strategy = wb.Strategy.parse("hsdp", 4).with_options(recompute="full")
    asked = wb.request("gpt", strategy=strategy, cpu=True, store=tmp_path)
    assert asked.processes == 4
    assert '"parallelism_config_dp_replicate_size": 2' in config_of(asked)
    assert '"fsdp_transformer_layer_cls_to_wrap": "Block"' in config_of(asked)
    with pytest.raises(UsageError, match="Leave one of them out"):
        wb.request("gpt", strategy=strategy, processes=2, cpu=True, store=tmp_path)


def test_a_split_model_is_its_scripts_affair(tmp_path: Path) -> None:
    """Our recipe splits itself by flags; for others Accelerate is told the sizes."""
    asked = wb.request("gpt", strategy="fsdp2-tp2", cpu=True, store=tmp_path)
    assert 'distributed_type: "MULTI_GPU"' in config_of(asked)
    assert "parallelism_config" not in config_of(asked)
    assert "cpu_ranks.py" not in asked.shell()
    strategy = wb.Strategy.parse("fsdp2-tp2", 4)
    text = accelerate_config.config_text(strategy, splits=None)
    assert 'distributed_type: "FSDP"' in text
    assert '"parallelism_config_tp_size": 2' in text


def test_nvme_is_written_for_deepspeed() -> None:
    strategy = wb.Strategy.parse("zero3", 2).with_options(offload=TOGETHER, offload_device="nvme")
    text = accelerate_config.files(strategy, "cuda")["deepspeed.json"]
    assert text.count('"nvme_path": "/local_nvme"') == 2
    assert text.count('"pin_memory": true') == 2

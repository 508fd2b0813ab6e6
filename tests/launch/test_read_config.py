"""Config files become strategies: our own come back equal, others keep what has no field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from workbench.describe import Strategy
from workbench.describe.supported import check_supported
from workbench.errors import UsageError
from workbench.launching.prepare import accelerate_config, read_config

TOGETHER = ("optimizer", "parameters")
LAUNCHABLE: list[tuple[str, int, dict[str, Any]]] = [
    ("single", 1, {}),
    ("ddp", 2, {}),
    ("fsdp", 4, {}),
    ("fsdp", 1, {}),
    ("fsdp-grad-op", 2, {}),
    ("hsdp", 4, {}),
    ("dp4-fsdp2", 8, {}),
    ("fsdp", 2, {"recompute": "full", "offload": TOGETHER, "state_dict": "full"}),
    ("fsdp", 2, {"meta_init": True}),
    ("fsdp", 2, {"engine": "fsdp1"}),
    ("fsdp-grad-op", 2, {"engine": "fsdp1", "wrap_min_parameters": 5_000}),
    ("zero1", 2, {"offload": ("optimizer",), "overlap_gradients": False}),
    ("zero2", 4, {"reduce_bucket": 1_000_000, "gather_bucket": 2_000_000}),
    ("zero3", 1, {}),
    ("zero3", 2, {"offload": TOGETHER, "gather_bucket": 10, "live_parameters": 20}),
    ("zero3", 2, {"offload": TOGETHER, "offload_device": "nvme"}),
    ("tp", 2, {}),
    ("fsdp2-tp2", 4, {}),
]


@pytest.mark.parametrize(("name", "processes", "options"), LAUNCHABLE)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_the_launcher_writes_comes_back_equal(
    tmp_path: Path, name: str, processes: int, options: dict[str, Any], device: str
) -> None:
    strategy = Strategy.parse(name, processes).with_options(**options)
    if strategy.deepspeed.offload_device == "nvme" and device == "cpu":
        pytest.skip("refused on CPU ranks, see test_supported.py")
    for folder in (None, tmp_path):  # the DeepSpeed file by its name alone, then by its whole path
        for file, text in accelerate_config.files(strategy, device, folder=folder).items():
            (tmp_path / file).write_text(text)
        found, kept = read_config.read_strategy(tmp_path / accelerate_config.CONFIG_NAME)
        assert found == strategy
        assert kept == {}


def read(tmp_path: Path, name: str, text: str) -> tuple[Strategy, dict[str, Any]]:
    (tmp_path / name).write_text(text)
    return read_config.read_strategy(tmp_path / name)


FSDP1 = """
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
downcast_bf16: 'no'
enable_cpu_affinity: false
fsdp_config:
  fsdp_activation_checkpointing: true
  fsdp_auto_wrap_policy: SIZE_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_cpu_ram_efficient_loading: true
  fsdp_forward_prefetch: false
  fsdp_min_num_params: 100000000
  fsdp_offload_params: true
  fsdp_reshard_after_forward: {reshard}
  fsdp_state_dict_type: FULL_STATE_DICT
  fsdp_sync_module_states: true
  fsdp_use_orig_params: true
  fsdp_version: 1
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: {machines}
num_processes: 8
rdzv_backend: static
same_network: true
tpu_env: []
use_cpu: false
"""


def test_fsdp1_as_accelerate_config_writes_it(tmp_path: Path) -> None:
    text = FSDP1.format(reshard="SHARD_GRAD_OP", machines=1)
    strategy, kept = read(tmp_path, "a.yaml", text)
    assert strategy == Strategy.parse("fsdp-grad-op", 8).with_options(
        engine="fsdp1",
        recompute="full",
        offload=TOGETHER,
        wrap_min_parameters=100_000_000,
        state_dict="full",
        meta_init=True,
    )
    assert kept == {
        "mixed_precision": "bf16",
        "tpu_env": [],
        "fsdp_config.fsdp_backward_prefetch": "BACKWARD_PRE",
    }


@pytest.mark.parametrize(
    ("written", "machines", "name", "degrees"),
    [
        ("FULL_SHARD", 1, "fsdp", (1, 8)),
        ("1", 1, "fsdp", (1, 8)),
        ("2", 1, "fsdp-grad-op", (1, 8)),
        ("HYBRID_SHARD", 2, "hsdp", (2, 4)),  # shards in each machine, replicates between them
        ("HYBRID_SHARD", 1, "fsdp", (1, 8)),
        ("NO_SHARD", 1, "ddp", (8, 1)),
    ],
)
def test_sharding_strategies_of_fsdp1(
    tmp_path: Path, written: str, machines: int, name: str, degrees: tuple[int, int]
) -> None:
    strategy, kept = read(tmp_path, "a.yaml", FSDP1.format(reshard=written, machines=machines))
    assert strategy.name == name
    assert (strategy.dp_replicate, strategy.dp_shard) == degrees
    assert ("fsdp_config.fsdp_reshard_after_forward" in kept) is (name == "ddp")


def test_machines_that_do_not_divide_the_ranks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="num_machines 3 does not divide its 8 ranks"):
        read(tmp_path, "a.yaml", FSDP1.format(reshard="HYBRID_SHARD", machines=3))


def test_deepspeed_section_without_a_json(tmp_path: Path) -> None:
    strategy, kept = read(
        tmp_path,
        "a.yaml",
        """
distributed_type: DEEPSPEED
num_processes: 4
deepspeed_config:
  gradient_accumulation_steps: 2
  offload_optimizer_device: cpu
  offload_param_device: none
  zero3_init_flag: true
  zero_stage: 3
""",
    )
    assert strategy == Strategy.parse("zero3", 4).with_options(offload=("optimizer",))
    assert kept == {
        "deepspeed_config.gradient_accumulation_steps": 2,
        "deepspeed_config.zero3_init_flag": True,
    }


def test_a_deepspeed_json_as_found_in_the_wild(tmp_path: Path) -> None:
    values = {
        "fp16": {"enabled": "auto", "loss_scale": 0, "initial_scale_power": 16},
        "bf16": {"enabled": True},
        "optimizer": {"type": "OneBitAdam", "params": {"lr": "auto", "freeze_step": 100}},
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "nvme", "nvme_path": "/mnt/fast", "pin_memory": True},
            "offload_param": {"device": "nvme", "nvme_path": "/local_nvme", "buffer_count": 5},
            "overlap_comm": True,
            "contiguous_gradients": True,
            "sub_group_size": 1e9,
            "reduce_bucket_size": "auto",
            "stage3_prefetch_bucket_size": 5e7,
            "stage3_max_live_parameters": 1e9,
            "stage3_gather_16bit_weights_on_model_save": True,
        },
        "gradient_accumulation_steps": 2,
        "train_micro_batch_size_per_gpu": 4,
        "train_batch_size": 64,
        "gradient_clipping": "auto",
        "steps_per_print": 2000,
    }
    strategy, kept = read(tmp_path, "ds.json", json.dumps(values))
    assert strategy == Strategy.parse("zero3", 8).with_options(  # 64 = 4 x 2 x 8
        offload=TOGETHER,
        offload_device="nvme",
        overlap_gradients=True,
        gather_bucket=50_000_000,
        live_parameters=1_000_000_000,
    )
    assert kept["optimizer.type"] == "OneBitAdam"
    assert kept["bf16.enabled"] is True
    assert kept["zero_optimization.offload_optimizer.nvme_path"] == "/mnt/fast"
    assert kept["zero_optimization.offload_param.buffer_count"] == 5
    assert kept["train_batch_size"] == 64
    assert not {key for key in kept if "nvme_path" in key and "param." in key}
    assert "gradient_clipping" not in kept
    check_supported(strategy, device="cuda")
    with pytest.raises(UsageError, match=r"ds\.json: train_batch_size is 64, but .* is 16\."):
        read_config.read_strategy(tmp_path / "ds.json", processes=2)
    values["train_batch_size"] = "auto"
    (tmp_path / "ds.json").write_text(json.dumps(values))
    again, _ = read_config.read_strategy(tmp_path / "ds.json", processes=2)
    assert again.world_size == 2


@pytest.mark.parametrize("words", [("--deepspeed", "ds.json"), ("--deepspeed_config=ds.json",)])
def test_a_deepspeed_file_whose_batches_do_not_multiply_is_refused_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    batches = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8}
    config = {"zero_optimization": {"stage": 2}, **batches, "train_batch_size": 256}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    (tmp_path / "train.py").write_text("print(1)\n")
    with pytest.raises(UsageError, match=r"ranks is 64\. Set it to 64, .*; it fits 8 ranks\."):
        wb.request("train.py", words, processes=2, cpu=True)
    for right in (64, "auto"):
        (tmp_path / "ds.json").write_text(json.dumps({**config, "train_batch_size": right}))
        assert wb.request("train.py", words, processes=2, cpu=True)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.yaml", "distributed_type: FSPD\nnum_processes: 2\n", "distributed_type is 'FSPD'"),
        ("a.yaml", "distributed_type: FSDP\nnum_processes: many\n", "num_processes is 'many'"),
        ("a.yaml", "distributed_type: MULTI_GPU\n", "num_processes is None"),
        (
            "a.yaml",
            "distributed_type: FSDP\nnum_processes: 2\nfsdp_config: {fsdp_version: 3}\n",
            "fsdp_config.fsdp_version is 3",
        ),
        ("a.yaml", "distributed_type: FSDP\nnum_processes: 2\nfsdp_config: 7\n", "a mapping"),
        (
            "a.yaml",
            (
                "distributed_type: FSDP\nnum_processes: 2\nfsdp_config: {fsdp_version: 2}\n"
                "parallelism_config: {parallelism_config_tp_size: 3}\n"
            ),
            "multiply to 3, num_processes is 2",
        ),
        (
            "a.yaml",
            (
                "distributed_type: DEEPSPEED\nnum_processes: 2\n"
                "deepspeed_config: {deepspeed_config_file: gone.json}\n"
            ),
            "gone.json cannot be read",
        ),
        ("a.yaml", "a: [1\n", "neither YAML nor JSON"),
        ("a.yaml", "- 1\n", "holds no mapping"),
        ("a.yaml", "seed: 1\n", "neither distributed_type"),
        ("ds.json", '{"zero_optimization": {"stage": 4}}', "zero_optimization.stage is 4"),
        (
            "ds.json",
            '{"zero_optimization": {"stage": 2, "reduce_bucket_size": "big"}}',
            "reduce_bucket_size is 'big'",
        ),
        (
            "ds.json",
            '{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "gpu"}}}',
            "offload_optimizer.device is 'gpu'",
        ),
    ],
)
def test_nonsense_is_refused_with_file_and_key(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    with pytest.raises(UsageError, match=said.replace(".", r"\.")) as refused:
        read(tmp_path, name, text)
    assert str(tmp_path) in str(refused.value)

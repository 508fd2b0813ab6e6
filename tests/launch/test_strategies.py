"""Every strategy that can be launched trains to the single process's curve, on real CPU ranks."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from workbench.errors import UsageError
from workbench.launch import accelerate_config

pytestmark = pytest.mark.slow
STEPS = 20
SHAPE = (
    *("--layers", "2", "--hidden", "64", "--seq-len", "64", "--warmup", "2"),
    *("--eval-every", "0", "--log-every", "5", "--steps", str(STEPS)),
)
BATCH = 8  # sequences per optimizer step, whatever the number of ranks
HERE = Path(__file__).parent.parent


def trained(store: Path, strategy: str, processes: int, **options: Any) -> dict[str, Any]:
    run = wb.launch(
        "gpt",
        [*SHAPE, "--micro-batch", str(BATCH // processes)],
        strategy=strategy,
        processes=processes,
        cpu=True,
        store=store,
        options=options or None,
    )
    assert run.wait(180) == "succeeded", run.logs(tail=20)
    return run.summary()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return trained(tmp_path_factory.mktemp("runs"), "single", 1)


@pytest.mark.parametrize(
    ("strategy", "processes", "options"),
    [
        ("ddp", 2, {}),
        ("fsdp", 2, {}),
        ("fsdp", 4, {}),
        ("fsdp-grad-op", 2, {}),
        ("hsdp", 4, {}),
        ("fsdp", 2, {"recompute": "full"}),
        ("fsdp", 2, {"offload": ("optimizer", "parameters")}),
    ],
)
def test_the_curve_is_the_single_process_one(
    tmp_path: Path,
    alone: dict[str, Any],
    strategy: str,
    processes: int,
    options: dict[str, Any],
) -> None:
    """fp32, one seed, one global batch: the algorithms are exact, sums differ in their order."""
    found = trained(tmp_path, strategy, processes, **options)
    assert found["world_size"] == processes
    assert found["steps"] == STEPS
    assert found["loss_first"] == pytest.approx(math.log(256), rel=1e-4)
    assert found["loss_last"] == pytest.approx(alone["loss_last"], rel=1e-4)


def test_the_printed_command_runs_without_the_workbench(
    tmp_path: Path, alone: dict[str, Any]
) -> None:
    """In a shell where importing workbench fails, to the same last loss."""
    poison = tmp_path / "poison"
    poison.mkdir()
    (poison / "workbench.py").write_text("raise ImportError('not here')\n")
    asked = wb.request(
        "gpt",
        [*SHAPE, "--micro-batch", "4"],
        strategy="fsdp",
        processes=2,
        cpu=True,
        store=tmp_path / "runs",
    )
    text = asked.shell()
    assert "cpu_ranks.py" in text
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(poison)}
    done = subprocess.run(
        ["bash", "-c", text], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    last = [line for line in done.stdout.splitlines() if f"step {STEPS:6d}" in line]
    assert last, done.stdout
    assert "2 processes" in done.stdout
    run = trained(tmp_path, "fsdp", 2)
    assert run["loss_last"] == pytest.approx(alone["loss_last"], rel=1e-4)


def shares(config: Path, *before: str) -> list[str]:
    """What tests/scripts/shares.py prints on two CPU ranks under `config`."""
    command = [
        *(sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(config)),
        *("--main_process_port", "0", *before, str(HERE / "scripts" / "shares.py")),
    ]
    environment = os.environ | accelerate_config.environment("cpu") | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=180
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return re.findall(
        r"share \d\.\d\d [A-Z]\w+?(?=share|\s)", done.stdout
    )  # ranks may share a line


def test_cpu_ranks_are_sharded_and_would_not_be_without_the_shim(tmp_path: Path) -> None:
    """The ground cpu_ranks.py stands on: it fails when a release of Accelerate changes it."""
    strategy = wb.Strategy.parse("fsdp", 2)
    for name, text in accelerate_config.files(strategy, "cpu", "Linear").items():
        (tmp_path / name).write_text(text)
    config = tmp_path / accelerate_config.CONFIG_NAME
    assert shares(config, str(tmp_path / "cpu_ranks.py")) == ["share 0.50 DTensor"] * 2
    bare = shares(config)
    assert bare == ["share 1.00 Parameter"] * 2


@pytest.mark.parametrize(
    ("strategy", "processes", "options", "said"),
    [
        ("zero2", 2, {}, "cannot be launched yet"),
        ("tp", 2, {}, "cannot be launched yet"),
        ("fsdp", 2, {"recompute": "selective"}, "script's own business"),
        ("ddp", 2, {"recompute": "full"}, "sharded strategies only"),
        ("fsdp", 2, {"offload": ("optimizer",)}, "together"),
        ("fsdp", 2, {"recompte": "full"}, "Did you mean recompute"),
    ],
)
def test_what_cannot_be_started_is_refused_before_it_is(
    tmp_path: Path, strategy: str, processes: int, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        wb.request(
            "gpt",
            strategy=strategy,
            processes=processes,
            cpu=True,
            store=tmp_path,
            options=options,
        )
    assert not list(tmp_path.iterdir())


def test_a_strategy_value_is_launched_as_it_is(tmp_path: Path) -> None:
    strategy = wb.Strategy.parse("hsdp", 4).with_options(recompute="full")
    asked = wb.request("gpt", strategy=strategy, cpu=True, store=tmp_path)
    assert asked.processes == 4
    (config,) = (text for path, text in asked.config_files.items() if path.endswith(".yaml"))
    assert '"parallelism_config_dp_replicate_size": 2' in config
    assert '"fsdp_transformer_layer_cls_to_wrap": "Block"' in config
    with pytest.raises(UsageError, match="Leave one of them out"):
        wb.request("gpt", strategy=strategy, processes=2, cpu=True, store=tmp_path)

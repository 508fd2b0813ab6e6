"""The ground that cpu_ranks.py stands on: these fail when a release of a library moves it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from tests.launch.ranks import printed
from workbench.launching.prepare import accelerate_config

pytestmark = pytest.mark.slow
SCRIPTS = Path(__file__).parent.parent / "scripts"


def written(folder: Path, strategy: wb.Strategy) -> Path:
    """The launcher's files for someone's own script in `folder`; returns the config file."""
    for name, text in accelerate_config.files(strategy, "cpu", "Linear", folder=folder).items():
        (folder / name).write_text(text)
    return folder / accelerate_config.CONFIG_NAME


def ranks(config: Path, script: str, *, shim: bool, **variables: str) -> str:
    """What the ranks of a script print under `config`, with or without cpu_ranks.py before it."""
    before = [str(config.with_name("cpu_ranks.py"))] if shim else []
    command = [
        *(sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(config)),
        *("--main_process_port", "0", *before, str(SCRIPTS / script)),
    ]
    environment = os.environ | accelerate_config.environment("cpu") | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command,
        env=environment | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    return printed(done)


def shares(printed: str) -> list[str]:
    """Ranks may share a line."""
    return re.findall(r"share \d\.\d\d [A-Z]\w+?(?=share|\s)", printed)


@pytest.mark.full
def test_a_script_that_asks_for_a_cpu_is_sharded_by_deepspeed_all_the_same(tmp_path: Path) -> None:
    """It sets ACCELERATE_USE_CPU and TrainingArguments(use_cpu=True) itself."""
    printed = ranks(written(tmp_path, wb.Strategy.parse("zero2", 2)), "hf_trainer.py", shim=True)
    assert printed.count("losses ") == 2


@pytest.mark.full
def test_fsdp_ranks_are_sharded_and_would_not_be_without_the_shim(tmp_path: Path) -> None:
    config = written(tmp_path, wb.Strategy.parse("fsdp", 2))
    assert shares(ranks(config, "shares.py", shim=True)) == ["share 0.50 DTensor"] * 2
    assert shares(ranks(config, "shares.py", shim=False)) == ["share 1.00 Parameter"] * 2


@pytest.mark.full
def test_hybrid_of_fsdp1_on_one_machine_is_full_sharding(tmp_path: Path) -> None:
    """The refusal of hsdp with engine fsdp1 says so: four ranks share, not two and two."""
    strategy = wb.Strategy.parse("fsdp", 4).with_options(engine="fsdp1")
    config = written(tmp_path, strategy)
    config.write_text(config.read_text().replace("FULL_SHARD", "HYBRID_SHARD"))
    found = shares(ranks(config, "shares.py", shim=True))
    assert [text.split()[1] for text in found] == ["0.25"] * 4


@pytest.mark.full
def test_deepspeed_ranks_take_its_code_and_compile_nothing(tmp_path: Path) -> None:
    config = written(tmp_path, wb.Strategy.parse("zero3", 2))
    extensions = tmp_path / "extensions"
    printed = ranks(config, "zero_shares.py", shim=True, TORCH_EXTENSIONS_DIR=str(extensions))
    found: list[dict[str, Any]] = [json.loads(line) for line in re.findall(r"\{.*?\}", printed)]
    assert [one["world"] for one in found] == [2, 2]
    assert {one["engine"] for one in found} == {"DeepSpeedEngine"}
    assert {one["share"] for one in found} == {0.5}
    assert not list(extensions.rglob("*.so"))
    assert not any(one["mlflow"] for one in found)  # DeepSpeed's autotuner would import it


@pytest.mark.full
def test_the_mesh_of_somebody_elses_script_is_accelerates(tmp_path: Path) -> None:
    config = written(tmp_path, wb.Strategy.parse("fsdp2-tp2", 4))
    printed = ranks(config, "mesh.py", shim=True)
    assert re.findall(r"dp_shard=2 tp=2 FSDP", printed) == ["dp_shard=2 tp=2 FSDP"] * 4


def test_the_shim_refuses_libraries_it_does_not_know(tmp_path: Path) -> None:
    """A module that lacks what the shim replaces ends in a sentence, not in silent DDP."""
    (tmp_path / "sitecustomize.py").write_text(
        "from accelerate.state import PartialState\ndel PartialState._prepare_backend\n"
    )
    script = tmp_path / "train.py"
    script.write_text("print('trained')\n")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(accelerate_config.CPU_RANKS), str(script)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Install accelerate<" in done.stderr
    assert "trained" not in done.stdout


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_script_in_fp8_trains_through_torchao(tmp_path: Path, strategy: str) -> None:
    pytest.importorskip("torchao", reason="pip install 'training-workbench[lowbit]'")
    config = written(tmp_path, wb.Strategy.parse(strategy, 2))
    printed = ranks(config, "eight_bits.py", shim=strategy == "fsdp")
    match = re.search(r"AO swapped (\d) loss ([\d.]+)", printed)
    assert match, printed
    assert int(match[1]) == 2  # Accelerate leaves out the first and the last
    assert float(match[2]) < 0.9  # from 1.07

"""The embedded recipe on one card: how fast a reference run is, and that every strategy starts.

Results are kept in tests/gpu/results/{reference,strategies}.json with device, versions and date;
`python -m pytest tests/gpu/test_gpu_strategies.py` on a GPU renews them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from tests.gpu.results import keep, versions
from workbench import recipes
from workbench.estimate.flops import flops_per_token
from workbench.launching.prepare import accelerate_config

GPUS = wb.detect_host().gpus
HERE = Path(__file__).parent
on_a_gpu = pytest.mark.skipif(not GPUS, reason="no NVIDIA GPU on this host")
REFERENCE = {  # name: size, micro-batch; 85 M, 393 M and 1.33 B parameters
    "0.1B": (12, 32),
    "0.4B": (20, 16),
    "1.3B": (30, 8),
}
SMALL = (
    *("--layers", "2", "--hidden", "128", "--seq-len", "128", "--micro-batch", "4"),
    *("--steps", "6", "--warmup", "2", "--eval-every", "0", "--precision", "bf16"),
)


@pytest.mark.gpu
@pytest.mark.full
@pytest.mark.slow
@on_a_gpu
@pytest.mark.parametrize("name", REFERENCE)
def test_the_reference_run_is_fast_and_its_memory_was_predicted(name: str, tmp_path: Path) -> None:
    size, micro_batch = REFERENCE[name]
    arguments = ["--size", str(size), "--seq-len", "2048", "--micro-batch", str(micro_batch)]
    arguments += ["--precision", "bf16", "--compile", "--steps", "40", "--eval-every", "0"]
    run = wb.launch("gpt", arguments, strategy="single", store=tmp_path)
    assert run.wait(290) == "succeeded", run.logs(tail=20)
    rows = run.metrics(0)[15:]  # compiled, allocator settled
    seconds = sorted(row["step_seconds"] for row in rows)[len(rows) // 2]
    tokens = micro_batch * 2048 / seconds
    measured: dict[str, Any] = {
        "device": GPUS[0].name,
        "versions": versions(),
        "tokens_per_second": tokens,
        "step_seconds_median": seconds,
        "peak_memory_bytes": run.summary()["peak_memory_bytes"][0],
        "predicted_memory": run.document["predicted"]["memory"]["allocated_bytes"],
    }
    host, workload = wb.detect_host(), wb.request("gpt", arguments, strategy="single").workload
    assert workload is not None
    peak = host.accelerator.peak_flops("bf16") if host.accelerator else None
    for kind, causal in (("causal", True), ("full", False)):
        flops = flops_per_token(workload.model, 2048, causal=causal)
        measured[f"mfu_{kind}"] = None if peak is None else flops * tokens / peak
    keep("reference", name, measured)
    assert measured["predicted_memory"] == pytest.approx(measured["peak_memory_bytes"], rel=0.1)
    if name == "1.3B" and host.accelerator and host.accelerator.arch == "Hopper":
        assert measured["mfu_causal"] > 0.5


@pytest.mark.gpu
@pytest.mark.full
@pytest.mark.slow
@on_a_gpu
@pytest.mark.parametrize(
    "strategy", ["ddp", "fsdp", "fsdp-grad-op", "zero1", "zero2", "zero3", "fsdp1"]
)
def test_every_config_starts_steps_and_saves_on_one_card(strategy: str, tmp_path: Path) -> None:
    """The files for two ranks with the number of processes edited to one, as a user would."""
    if strategy.startswith("zero"):
        pytest.importorskip("deepspeed")
    chosen = wb.Strategy.parse(strategy.replace("fsdp1", "fsdp"), 2)
    chosen = chosen.with_options(engine="fsdp1") if strategy == "fsdp1" else chosen
    recipe = recipes.find("gpt")
    found = accelerate_config.files(
        chosen, "cuda", recipe.block, folder=tmp_path, splits=recipe.splits
    )
    for name, text in found.items():
        one = text.replace("num_processes: 2", "num_processes: 1")
        (tmp_path / name).write_text(one)
    saving = [*SMALL, "--checkpoint-every", "6", "--checkpoint-dir", str(tmp_path / "saved")]
    command = accelerate_config.command(
        tmp_path,
        recipe.path,
        saving,
        strategy=chosen,
        device="cuda",
        threads=2,
        port=0,
        splits=recipe.splits,
    )
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "saved" / "step-00000006").is_dir()
    keep("strategies", strategy, {"device": GPUS[0].name, "versions": versions(), "ran": True})


def probe(folder: Path, *arguments: str, **environment: str) -> list[float]:
    """First and last loss of the model-parallel engine on one rank."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"),
        *(str(HERE / "model_parallel_probe.py"), str(folder), *arguments),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("losses"))
    return [float(word) for word in line.split()[1:]]


@pytest.mark.gpu
@pytest.mark.full
@pytest.mark.slow
@on_a_gpu
def test_the_model_parallel_engine_starts_steps_and_saves_on_one_card(tmp_path: Path) -> None:
    first, last = probe(tmp_path / "saved", *SMALL)
    assert last < first
    keep("strategies", "mesh", {"device": GPUS[0].name, "versions": versions(), "ran": True})


@pytest.mark.full
@pytest.mark.slow
def test_the_model_parallel_probe_runs_without_a_gpu_too(tmp_path: Path) -> None:
    arguments = [word if word != "bf16" else "fp32" for word in SMALL]
    first, last = probe(tmp_path / "saved", *arguments, ACCELERATE_USE_CPU="true")
    assert last < first
    assert list((tmp_path / "saved").iterdir())

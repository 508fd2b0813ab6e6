"""What this machine is, and whether the workbench sees it as it is."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.gpu.battery import pod
from tests.gpu.battery.values import Check, NotAvailable, Report, Setup

ROOT = Path(__file__).parents[3]
PACKAGES = (
    *("torch", "accelerate", "transformers", "peft", "deepspeed", "bitsandbytes"),
    *("nvidia-ml-py", "psutil", "rich", "typer", "triton"),
)
QUERY = {
    "name": "name",
    "driver": "driver_version",
    "memory_total_mib": "memory.total",
    "memory_used_mib": "memory.used",
    "util": "utilization.gpu",
    "temperature_c": "temperature.gpu",
    "power_w": "power.draw",
    "sm_clock_mhz": "clocks.sm",
}


def versions() -> dict[str, str | None]:
    """Of everything that computes, and of Python."""
    found: dict[str, str | None] = {"python": sys.version.split()[0]}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def nvidia_smi() -> dict[str, Any] | None:
    """The first GPU as nvidia-smi describes it; None without the program or a card."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, f"--query-gpu={','.join(QUERY.values())}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    if done.returncode or not done.stdout.strip():
        return None
    words = [word.strip() for word in done.stdout.splitlines()[0].split(",")]
    values = dict(zip(QUERY, words, strict=True))
    return {name: _number(word) for name, word in values.items()}


def _number(word: str) -> float | str | None:
    try:
        return float(word)
    except ValueError:
        return None if word.startswith("[") else word


def environment(setup: Setup) -> Report:
    """The card's own torch, the catalog's entry of the card, and the doctor."""
    import workbench as wb

    probe = (
        "import json, torch; print(json.dumps({"
        "'torch': torch.__version__, 'cuda': torch.version.cuda, "
        "'available': torch.cuda.is_available(), 'gpus': torch.cuda.device_count(), "
        "'capability': list(torch.cuda.get_device_capability()) if torch.cuda.is_available() "
        "else None}))"
    )
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=120
    )
    torch_facts = json.loads(done.stdout.splitlines()[-1])
    host, diagnosis = wb.detect_host(), wb.doctor(setup.store)
    failed = [check for check in diagnosis["checks"] if not check["ok"]]
    measured = {
        "torch": torch_facts,
        "torch_import_seconds": time.perf_counter() - began,
        "nvidia_smi": nvidia_smi(),
        "versions": versions(),
        "gpus": [gpu.name for gpu in host.gpus],
        "accelerator": host.accelerator.id if host.accelerator else None,
        "doctor_failed": failed,
    }
    checks = [Check(name="torch imports", value=bool(torch_facts["torch"]), equals=True)]
    if setup.on_gpu:
        checks += [
            Check(name="torch sees the GPU", value=torch_facts["available"], equals=True),
            Check(name="GPUs seen by NVML", value=len(host.gpus), equals=torch_facts["gpus"]),
        ]
    if setup.simulated:
        doctors = next(check for check in diagnosis["checks"] if check["name"] == "GPUs")
        checks.append(
            Check(name="the doctor names it", value="(simulated)" in doctors["found"], equals=True)
        )
    if setup.on_gpu or setup.simulated:
        checks.append(Check(name="in the catalog", value=host.accelerator is not None, equals=True))
    return Report(measured=measured, checks=tuple(checks))


def system_python(setup: Setup) -> Report:
    """What the set-up would choose here: the torch of the system where it fits the driver."""
    code = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); from venv_setup import probe; "
        "from venv_setup.choice import decide; machine = probe.look(sys.executable); "
        "choice = decide(machine, mode='auto', wants_torch=True); "
        "print(json.dumps({'kind': choice.kind, 'line': choice.line()}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(ROOT / "environments")],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    chosen = json.loads(done.stdout.splitlines()[-1])
    checks = [Check(name="a torch is chosen", value=bool(chosen["line"]), equals=True)]
    if setup.on_gpu:
        checks.append(Check(name="kind of torch", value=chosen["kind"], equals="system"))
    return Report(measured=chosen, checks=tuple(checks))


def nvml_values(setup: Setup) -> Report:
    """The panels' source beside nvidia-smi, while the card multiplies matrices."""
    import torch

    from workbench.observe.gpu import GpuSampler

    if setup.simulated:
        return pod.readings(setup)
    if not setup.on_gpu:
        GpuSampler().sample()
        raise NotAvailable("no GPU: NVML has nothing to read")
    ending = threading.Event()

    def multiply() -> None:
        a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
        while not ending.is_set():
            for _ in range(10):
                a @ a
            torch.cuda.synchronize()

    thread = threading.Thread(target=multiply)
    thread.start()
    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = []
    sampler = GpuSampler()
    try:
        time.sleep(2.0)
        for _ in range(5):
            ours, theirs = sampler.sample()[0].document(), nvidia_smi()
            if theirs is not None:
                pairs.append((ours, theirs))
            time.sleep(0.4)
    finally:
        ending.set()
        thread.join()
    if not pairs:
        raise NotAvailable("nvidia-smi is not here or does not answer")
    return Report(
        measured={"pairs": pairs},
        checks=(
            Check(name="utilisation under load, %", value=_middle(pairs, 0, "util"), low=80),
            _close("utilisation, points", pairs, "util", 15),
            _close("temperature, °C", pairs, "temperature_c", 4),
            _close("power, W", pairs, "power_w", 60),
            _close("SM clock, MHz", pairs, "sm_clock_mhz", 150),
            Check(
                name="memory used, MiB apart",
                value=abs(
                    (_middle(pairs, 0, "memory_bytes") or 0) / 2**20
                    - (_middle(pairs, 1, "memory_used_mib") or 0)
                ),
                high=64,
            ),
        ),
    )


def _middle(
    pairs: list[tuple[dict[str, Any], dict[str, Any]]], side: int, key: str
) -> float | None:
    values = [pair[side][key] for pair in pairs if isinstance(pair[side].get(key), int | float)]
    return statistics.median(values) if values else None


def _close(name: str, pairs: list[Any], key: str, apart: float) -> Check:
    ours, theirs = _middle(pairs, 0, key), _middle(pairs, 1, key)
    value = None if ours is None or theirs is None else abs(ours - theirs)
    return Check(name=f"{name} apart", value=value, high=apart)

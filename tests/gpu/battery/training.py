"""The recipe on one device: speed, the hook's cost, calibration, predicted step times."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.gpu.battery.values import Case, Check, NotAvailable, Report, Setup, ratio_check
from workbench.describe import Cluster

ROOT = Path(__file__).parents[3]
REFERENCE = {"0.1B": (12, 32), "0.4B": (20, 16), "1.3B": (30, 8)}  # size, micro-batch
# Size, sequence, micro-batch; the calibration measures none of them.
STEP_SIZES = (
    *((6, 512, 16), (8, 1024, 16), (10, 1024, 16), (12, 1024, 16), (12, 2048, 8)),
    *((14, 1024, 16), (16, 1024, 16), (20, 1024, 8), (24, 1024, 8), (28, 2048, 4)),
)
TINY_SIZES = ((2, 64, 2), (3, 64, 2))


def recipe(name: str, setup: Setup) -> Report:
    """A launched run of the recipe: loss falls, memory as predicted, tokens/s and MFU."""
    import workbench as wb
    from workbench.estimate.flops import flops_per_token

    size, micro_batch = REFERENCE[name]
    seq_len, steps, skip = 2048, 40, 15
    arguments = ["--size", str(size), "--seq-len", "2048", "--micro-batch", str(micro_batch)]
    arguments += ["--precision", "bf16", "--compile"]
    if not setup.on_gpu:
        micro_batch, seq_len, steps, skip = 2, 64, 12, 4
        arguments = ["--size", "2", "--seq-len", "64", "--micro-batch", "2"]
    arguments += ["--steps", str(steps), "--eval-every", "0", "--warmup", "10"]
    run = wb.launch("gpt", arguments, strategy="single", **setup.launching)
    outcome = run.wait(150)
    if outcome != "succeeded":
        raise RuntimeError(f"{outcome}: {run.logs(tail=20)}")
    rows, summary = run.metrics(0), run.summary()
    seconds = statistics.median(row["step_seconds"] for row in rows[skip:])
    tokens_per_second = micro_batch * seq_len / seconds
    request = wb.request("gpt", arguments, strategy="single", cpu=setup.launch_on_cpu)
    assert request.workload is not None
    accelerator = wb.detect_host().accelerator if setup.on_gpu else None
    flops = flops_per_token(request.workload.model, seq_len, causal=True)
    predicted = run.document["predicted"]["memory"]
    checks = [
        Check(name="loss falls", value=rows[-1]["loss"] < rows[0]["loss"], equals=True),
        Check(name="every step recorded", value=len(rows), equals=steps),
        Check(name="findings", value=len(summary["findings"]), equals=0),
    ]
    if setup.on_gpu:
        checks.append(
            ratio_check(
                "allocated_bytes",
                predicted["allocated_bytes"],
                summary["peak_memory_bytes"][0],
                0.9,
                1.1,
            )
        )
    return Report(
        predicted={"memory": predicted, "time": run.document["predicted"].get("time")},
        measured={
            "tokens_per_second": tokens_per_second,
            "step_seconds": seconds,
            "mfu": flops * tokens_per_second / accelerator.peak_flops("bf16")
            if accelerator
            else None,
            "peak_memory_bytes": summary["peak_memory_bytes"],
            "loss_first": rows[0]["loss"],
            "loss_last": rows[-1]["loss"],
        },
        checks=tuple(checks),
    )


def hook_overhead(setup: Setup) -> Report:
    """Steps of about 10 and 50 ms with and without the hook, processes in turns; also its syncs."""
    answers = {hooked: list[dict[str, Any]]() for hooked in (False, True)}
    for hooked in (False, True, True, False) if setup.on_gpu else (False, True):
        answers[hooked].append(_probe(setup, hooked=hooked))
    measured: dict[str, Any] = {}
    checks: list[Check] = []
    for size in answers[True][0]["step_seconds"]:
        bare, observed = (
            statistics.median(
                itertools.chain.from_iterable(one["step_seconds"][size] for one in answers[hooked])
            )
            for hooked in (False, True)
        )
        measured[size] = {"bare_seconds": bare, "hooked_seconds": observed}
        high = 0.005 if setup.on_gpu else None  # a shared CPU tells nothing about half a per cent
        checks.append(Check(name=f"share of a step, {size}", value=observed / bare - 1, high=high))
    for name in answers[True][0]["calls"]:
        bare, observed = (answers[hooked][0]["calls"][name] for hooked in (False, True))
        measured[name] = {"bare": bare, "hooked": observed}
        checks.append(Check(name=f"{name} added", value=observed - bare, high=0))
    return Report(measured=measured, checks=tuple(checks))


def _probe(setup: Setup, *, hooked: bool) -> dict[str, Any]:
    """What overhead_probe.py measured in a process of its own."""
    import json

    from workbench.launching.capture import SITE_FOLDER

    folder = setup.out / "hook"
    for part in ("logs", "metrics", "control", "checkpoints"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    environment = {key: value for key, value in os.environ.items() if "WORKBENCH" not in key}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, *([SITE_FOLDER] * hooked))))
    if hooked:
        environment["WORKBENCH_RUN_DIR"] = str(folder)
    result = folder / "answer.json"
    subprocess.run(
        [
            *(sys.executable, str(Path(__file__).with_name("overhead_probe.py"))),
            *(setup.device, str(result)),
        ],
        check=True,
        env=environment,
        timeout=60,
    )
    return json.loads(result.read_text())


def calibrate(setup: Setup) -> Report:
    """Measure this host, keep it in the store, compare with the catalog."""
    from workbench.compare.calibration.calibrate import calibrate as measure
    from workbench.estimate.calibration_check import lines, troubles

    if setup.on_gpu:
        calibration = measure(setup.store, seconds=45.0)
    else:
        few: dict[str, Any] = {"processes": (1,), "steps_only": True}
        calibration = measure(setup.store, cluster=_host(setup), seconds=6.0, cpu=True, **few)
    rows = [
        {"name": one.name, "measured": one.measured, "expected": one.expected, "ratio": one.ratio}
        for one in lines(calibration)
    ]
    checks = [
        Check(name="device", value=calibration.device, equals=setup.device),
        Check(name="steps measured", value=len(calibration.steps), low=1),
    ]
    if setup.on_gpu:
        for row in rows:
            if row["ratio"] is not None:
                checks.append(Check(name=str(row["name"]), value=row["ratio"], low=0.3, high=1.1))
    return Report(
        measured={
            "calibration": calibration.document(),
            "lines": rows,
            "troubles": [one.what for one in troubles(calibration)],
        },
        checks=tuple(checks),
    )


def _host(setup: Setup) -> Cluster:
    """This host; without a card one core of it, which is what proving the code takes.

    Two threads meet after each operation, and on a busy CPU one always waits for its turn: the same
    calibration took more than 120 s in place of 10 at a load of 20.
    """
    import workbench as wb

    host = wb.detect_host()
    return host if setup.on_gpu else dataclasses.replace(host, cpu_cores=1)


def step_times(precision: str, setup: Setup) -> Report:
    """Ten sizes in one process: the median step beside the one predicted from the calibration."""
    import workbench as wb
    from workbench.compare.calibration.calibrate import stored_calibration
    from workbench.estimate.host_step import predict_step

    if setup.on_gpu and precision == "fp8":
        raise NotAvailable("the recipe does not train in fp8")
    if not setup.on_gpu and precision != "fp32":
        raise NotAvailable(
            f"{precision} steps need a GPU that computes: they are predicted for one"
        )
    host = _host(setup)
    calibration = stored_calibration(setup.store, cluster=host, cpu=not setup.on_gpu)
    if calibration is None and not setup.on_gpu:
        raise NotAvailable("steps on a CPU are predicted from a calibration: run that case first")
    rows = []
    for size, seq_len, micro_batch in STEP_SIZES if setup.on_gpu else TINY_SIZES:
        arguments = ["--size", str(size), "--seq-len", str(seq_len), "--precision", precision]
        arguments += ["--micro-batch", str(micro_batch), "--steps", "20"]
        request = wb.request("gpt", arguments, strategy="single", cpu=not setup.on_gpu)
        assert request.workload is not None
        predicted = predict_step(request.workload, request.strategy, host, calibration)
        seconds = statistics.median(_steps(arguments, setup)[6:])
        rows.append(
            {
                "size": [size, seq_len, micro_batch],
                "measured": seconds,
                "predicted": predicted and predicted.step_seconds,
                "range": predicted and [predicted.low, predicted.high],
            }
        )
    ratios = [row["predicted"] / row["measured"] for row in rows if row["predicted"]]
    inside = [
        row["range"][0] <= row["measured"] / row["predicted"] <= row["range"][1]
        for row in rows
        if row["predicted"]
    ]
    low, high = (0.85, 1.15) if setup.on_gpu else (None, None)  # of a shared CPU it tells nothing
    return Report(
        measured={"rows": rows, "calibrated": calibration is not None},
        checks=(
            Check(name="sizes predicted", value=len(ratios), equals=len(rows)),
            Check(name="median ratio", value=_median(ratios), low=low, high=high),
            Check(
                name="share inside the stated range",
                value=sum(inside) / len(inside) if inside else None,
                low=0.8 if setup.on_gpu else 0.0,
            ),
        ),
    )


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def _steps(arguments: list[str], setup: Setup) -> list[float]:
    """Seconds of each step of the recipe's own engine in this process."""
    recipes = str(ROOT / "workbench" / "recipes")
    if recipes not in sys.path:
        sys.path.insert(0, recipes)
    os.environ["ACCELERATE_USE_CPU"] = "false" if setup.on_gpu else "true"
    import gpt
    import torch
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    if not setup.on_gpu:
        torch.set_num_threads(_host(setup).cpu_cores or 1)
    trainer = gpt.Trainer(gpt.parse_options(arguments))
    wait = torch.cuda.synchronize if setup.on_gpu else (lambda: None)
    seconds: list[float] = []
    for number in range(trainer.options.steps):
        wait()
        began = time.perf_counter()
        trainer.step(number)
        wait()
        seconds.append(time.perf_counter() - began)
    del trainer
    if setup.on_gpu:
        torch.cuda.empty_cache()
    return seconds


def recipe_cases() -> tuple[Case, ...]:
    return tuple(
        Case(
            name=f"recipe-{name}",
            group="recipe",
            run=functools.partial(recipe, name),
            limit_seconds=160,
        )
        for name in REFERENCE
    )


def step_cases() -> tuple[Case, ...]:
    return tuple(
        Case(
            name=f"steps-{precision}",
            group="time",
            run=functools.partial(step_times, precision),
            limit_seconds=90,
        )
        for precision in ("bf16", "fp32", "fp16", "fp8")
    )

"""Inference speed, a profile with CUDA activity, DeepSpeed on one card."""

from __future__ import annotations

import gzip
import json
import time
from typing import Any

from tests.gpu.battery.values import Check, Report, Setup, ratio_check

PHASES = frozenset("BEXiInbnesftPMNODvRcCS")


def inference(setup: Setup) -> Report:
    """Greedy decoding of a GPT-2-shaped model with its cache: tokens/s, memory beside predicted."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    import workbench as wb
    from workbench.describe import Model

    config, length, batch = GPT2Config(), 512, 8
    if not setup.on_gpu:
        config, length, batch = GPT2Config(n_layer=2, n_embd=64, n_head=2, vocab_size=500), 32, 2
    dtype = torch.bfloat16 if setup.on_gpu else torch.float32
    model = GPT2LMHeadModel(config).to(setup.device, dtype).eval()
    prompt = torch.randint(config.vocab_size, (batch, length // 4), device=setup.device)
    options: dict[str, Any] = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    model.generate(prompt, max_new_tokens=4, **options)
    if setup.on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    produced = model.generate(prompt, max_new_tokens=length - length // 4, **options)
    if setup.on_gpu:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    new = (produced.shape[1] - prompt.shape[1]) * batch
    measured = {"tokens_per_second": new / seconds, "new_tokens": new, "seconds": seconds}
    checks = [Check(name="tokens made", value=new, equals=(length - length // 4) * batch)]
    predicted = wb.inference_memory(Model.catalog("gpt2"), 512, batch=8, precision="bf16")
    if setup.on_gpu:
        measured["allocated_bytes"] = torch.cuda.max_memory_allocated()
        checks.append(
            ratio_check(
                "allocated_bytes", predicted.allocated_bytes, measured["allocated_bytes"], 0.8, 1.25
            )
        )
    return Report(
        measured=measured,
        predicted={"allocated_bytes": predicted.allocated_bytes, "parts": dict(predicted.parts)},
        checks=tuple(checks),
    )


def profile(setup: Setup) -> Report:
    """A launched run under the profiler: shares of the step, and events as the trace format has them."""
    import workbench as wb
    from workbench.compare.profile.analysis import read_profile
    from workbench.compare.profile.merge import merged_trace
    from workbench.compare.profile.tracing import traced_from_the_start
    from workbench.store.layout import RunPaths

    arguments = ["--size", "8", "--seq-len", "512", "--micro-batch", "8", "--precision", "bf16"]
    if not setup.on_gpu:
        arguments = ["--size", "2", "--seq-len", "64", "--micro-batch", "2"]
    run = wb.launch(
        "gpt",
        [*arguments, "--steps", "16", "--eval-every", "0"],
        strategy="single",
        **setup.launching,
        environment=traced_from_the_start("8:4"),
    )
    outcome = run.wait(90)
    found = read_profile(RunPaths(run.directory))
    merged = merged_trace(found)
    with gzip.open(merged) as file:
        events = json.load(file)["traceEvents"]
    wrong = [event for event in events if trace_event_fault(event)]
    rank = found.ranks[0]
    checks = [
        Check(name="outcome", value=outcome, equals="succeeded"),
        Check(name="steps traced", value=len(rank.steps), equals=4),
        Check(name="device", value=rank.device, equals=setup.device),
        Check(name="events that break the format", value=len(wrong), equals=0),
    ]
    if setup.on_gpu:
        kernels = sum(event.get("cat") == "kernel" for event in events)
        checks.append(Check(name="kernels", value=kernels, low=1))
    return Report(
        measured={
            "events": len(events),
            "wrong": wrong[:5],
            "merged_bytes": merged.stat().st_size,
            "profile": found.document(),
        },
        checks=tuple(checks),
    )


def trace_event_fault(event: dict[str, Any]) -> str | None:
    """What is wrong with an event by the Trace Event Format; None where nothing is.

    Source: "Trace Event Format", the document that Perfetto's JSON importer follows.
    """
    phase = event.get("ph")
    is_number = isinstance(event.get("ts"), int | float)
    lasts = isinstance(event.get("dur"), int | float) and event["dur"] >= 0
    named = isinstance(event.get("args"), dict) and "name" in event
    faults = {
        f"phase {phase!r}": phase not in PHASES,
        "no pid": "pid" not in event,
        "metadata without name or args": phase == "M" and not named,
        "no ts": phase != "M" and not is_number,
        "no dur": phase == "X" and not lasts,
        "flow without id": phase in {"s", "t", "f"} and "id" not in event,
    }
    return next((fault for fault, applies in faults.items() if applies), None)


def deepspeed(setup: Setup) -> Report:
    """ZeRO-2 through the launcher's own config, on one rank."""
    import subprocess
    import sys

    import workbench as wb
    from workbench import recipes
    from workbench.launching.prepare import accelerate_config

    strategy = wb.Strategy.parse("zero2", 2)
    found = recipes.find("gpt")
    folder = setup.out / "zero2"
    folder.mkdir(parents=True, exist_ok=True)
    files = accelerate_config.files(
        strategy, setup.device, found.block, folder=folder, splits=found.splits
    )
    for name, text in files.items():
        (folder / name).write_text(text.replace("num_processes: 2", "num_processes: 1"))
    size = "8" if setup.on_gpu else "2"
    arguments = ["--size", size, "--seq-len", "128", "--micro-batch", "4", "--steps", "8"]
    arguments += ["--warmup", "2", "--eval-every", "0", "--log-every", "1"]
    arguments += ["--precision", "bf16" if setup.on_gpu else "fp32"]
    command = accelerate_config.command(
        folder,
        found.path,
        arguments,
        strategy=strategy,
        device=setup.device,
        threads=2,
        port=0,
        splits=found.splits,
    )
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
    text = done.stdout + done.stderr
    losses = [
        float(line.split("loss")[1].split()[0]) for line in text.splitlines() if "| loss" in line
    ]
    return Report(
        measured={"losses": losses, "tail": text[-1500:], "python": sys.version.split()[0]},
        checks=(
            Check(name="exit code", value=done.returncode, equals=0),
            Check(name="loss falls", value=len(losses) > 1 and losses[-1] < losses[0], equals=True),
        ),
    )

"""Step times of two small models, and the calls per step that wait for the device.

    python overhead_probe.py DEVICE RESULT.json

Run with and without the capture hook on PYTHONPATH. Accelerate's loop, as most scripts have it:
clipping, a fused optimizer, the loss read every tenth step.
"""

import json
import sys
import time
from pathlib import Path

import torch
from accelerate import Accelerator

WAITING = ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize")
SIZES = {"10 ms": (1024, 1024, 20), "50 ms": (4096, 2048, 20)}  # batch x width, layers
TINY = {"tiny": (32, 64, 2)}


def main() -> None:
    device, result = sys.argv[1], Path(sys.argv[2])
    accelerator = Accelerator(cpu=device == "cpu")
    seconds = {}
    calls: dict[str, int] = {}
    for name, (batch, width, layers) in (TINY if device == "cpu" else SIZES).items():
        step = training(accelerator, batch, width, layers)
        for _ in range(20):
            step()
        seconds[name] = timed(step, device, 60)
        if not calls:
            calls = waiting_calls(step, device)
    result.write_text(json.dumps({"step_seconds": seconds, "calls": calls}))


def training(accelerator, batch, width, layers):
    parts = [torch.nn.Linear(width, width) for _ in range(layers)]
    model = torch.nn.Sequential(*parts)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    model, optimizer = accelerator.prepare(model, optimizer)
    inputs = torch.randn(batch, width, device=accelerator.device)
    made = [0]

    def step():
        loss = model(inputs).square().mean()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        made[0] += 1
        if made[0] % 10 == 0:
            loss.item()

    return step


def timed(step, device, count):
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    seconds = []
    for _ in range(count // 10):
        wait()
        began = time.perf_counter()
        for _ in range(10):
            step()
        wait()
        seconds.append((time.perf_counter() - began) / 10)
    return seconds


def waiting_calls(step, device):
    """Calls in ten steps that wait for the device, by name."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if device == "cuda":
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=kinds) as trace:
        for _ in range(10):
            step()
    counts = {one.key: one.count for one in trace.key_averages()}
    return {name: counts.get(name, 0) for name in WAITING}


if __name__ == "__main__":
    main()

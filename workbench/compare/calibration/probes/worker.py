"""One process of a calibration: walks through the probes; the first one tells what was found.

Started by `calibration.calibrate` as ``python -m …probes.worker PLAN``, never by people.
"""

# torch.distributed is only partly typed.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

LEAST_LEFT = 0.3  # of its budget is what every probe gets, however late it is
TELL = os.fdopen(os.dup(1), "w", buffering=1) if __name__ == "__main__" else sys.stdout


class Plan(NamedTuple):
    """What the parent asks for."""

    rank: int
    """This process."""
    sizes: list[int]
    """Numbers of processes that measure together, one after the other."""
    device: str
    """cpu or cuda."""
    cores: int
    """Shared out to the processes of a group."""
    seconds: float
    """For all probes, loading left out."""
    rendezvous: str
    """A file that does not exist yet."""
    folder: str
    """On the disk that is to be measured."""
    steps_only: bool = False
    """Only what a step's time is made of: neither disk nor loader, copies nor clocks."""


class Probe(NamedTuple):
    """One entry of the walk."""

    text: str
    """What people read while it runs."""
    key: str
    """Field of the calibration; empty: the answer's own keys."""
    size: int
    """Processes."""
    weight: float
    """Its part of the time, beside the others'."""
    run: Callable[[Any, float], Any]
    """Given group and budget."""


def main() -> None:
    """Measure; exit code 0 when every probe ran."""
    os.dup2(2, 1)  # what a library prints must not come between the answers
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    plan = Plan(**json.loads(sys.argv[1]))
    os.environ["OMP_NUM_THREADS"] = str(plan.cores)  # what a group may use at most
    sys.path.insert(0, str(Path(__file__).parents[3] / "recipes"))
    import torch  # noqa: PLC0415  (slow to load: the parent's death is noticed meanwhile)
    import torch.distributed as dist  # noqa: PLC0415

    from workbench.compare.calibration.probes.process_group import TIMEOUT, ProcessGroup  # noqa: PLC0415

    device = torch.device("cuda", plan.rank) if plan.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{plan.rendezvous}",
        rank=plan.rank,
        world_size=max(plan.sizes),
        timeout=TIMEOUT,
    )
    groups: dict[int, ProcessGroup] = {}
    for size in plan.sizes:
        threads = max(1, plan.cores // size)
        groups[size] = ProcessGroup(size, plan.rank, device=device, threads=threads)
    _walk(plan, groups)
    dist.barrier()
    if plan.rank == 0:
        _send({"done": True, "versions": _versions()})
    dist.destroy_process_group()


def _walk(plan: Plan, groups: dict[int, Any]) -> None:
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    probes = _probes(plan)
    total, done = sum(probe.weight for probe in probes), 0.0
    began = time.monotonic()
    for probe in probes:
        if plan.rank == 0:
            _send({"progress": done / total, "text": probe.text})
        group = groups[probe.size]
        dist.barrier()  # the others sleep here
        if group.contains_this_process:
            torch.set_num_threads(group.threads)
            # On a busy host the first probes overrun: the others share what is left.
            left = max(
                LEAST_LEFT * (total - done) / total, 1 - (time.monotonic() - began) / plan.seconds
            )
            result = probe.run(group, plan.seconds * left * probe.weight / (total - done))
            if plan.rank == 0:
                _send({"found": {probe.key: result} if probe.key else result})
        done += probe.weight


def _probes(plan: Plan) -> list[Probe]:
    from workbench.compare.calibration.probes import (  # noqa: PLC0415
        clocks,
        collectives,
        memory,
        products,
        steps,
        storage,
    )

    def disk(_group: Any, budget: float) -> dict[str, float]:
        return storage.disk(Path(plan.folder), budget)

    on_gpu = plan.device == "cuda"
    probes = [
        Probe("disk", "", 1, 3, disk),
        Probe("batches of the recipe", "", 1, 1, storage.loader),
    ]
    if plan.steps_only:
        probes = []
    elif on_gpu:
        probes.append(Probe("host to card and back", "", max(plan.sizes), 2, memory.transfers))
    for size in plan.sizes:
        text = "1 process" if size == 1 else f"{size} processes"
        weight = 8 if on_gpu else 4
        if on_gpu and size == 1 and not plan.steps_only:
            probes.append(Probe("clock under load", "", 1, 2, clocks.measure))
        probes.append(Probe(f"products, {text}", "products", size, weight, products.measure))
        probes.append(Probe(f"memory and launches, {text}", "rates", size, 1, memory.measure))
        if size > 1:
            measure = collectives.measure
            probes.append(Probe(f"collectives, {text}", "collectives", size, 4, measure))
        for shape in steps.GPU_SHAPES if on_gpu else steps.CPU_SHAPES:
            name = f"steps of {shape.layers} x {shape.hidden}, {text}"
            probes.append(Probe(name, "steps", size, 2.5, _step_probe(shape)))
    return probes


def _step_probe(shape: Any) -> Callable[[Any, float], Any]:
    from workbench.compare.calibration.probes import steps  # noqa: PLC0415

    return lambda group, budget: steps.measure(group, shape, budget)


def _versions() -> dict[str, str]:
    import torch  # noqa: PLC0415

    versions = {"torch": torch.__version__, "python": sys.version.split()[0]}
    if torch.cuda.is_available():
        versions["cuda"] = str(torch.version.cuda)
        nccl: Any = importlib.import_module("torch.cuda.nccl")
        versions["nccl"] = ".".join(map(str, nccl.version()))
    return versions


def _send(message: dict[str, Any]) -> None:
    TELL.write(json.dumps(message) + "\n")


def _end_with_the_parent() -> None:
    """The parent's end of our input closes with its death, whatever it died of."""
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    main()

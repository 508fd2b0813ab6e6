"""What tracing costs the traced steps, and the others.

    python -m tests.benchmarks.profile_overhead [--size 4]      # arguments of gpt.py

The recipe gpt trains on two CPU ranks, in turns with and without a trace of 20 steps in its middle.
Compared are medians: the traced steps with their neighbours of the same run, and the untraced steps
of that run with the same steps of a run that nobody traced. What lies between (the step that warms
up, and those while the trace is written) is printed by itself. The noise is how far the runs that
nobody traced differ among themselves.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import workbench as wb
from workbench.compare.profile import tracing
from workbench.compare.profile.analysis import accounts
from workbench.launching.capture.profiling import VARIABLE
from workbench.store.layout import RunPaths

PROMISED = 1.10
TURNS, STEPS, FIRST, TRACED = 3, 120, 50, 20
EARLY, SETTLED = 20, 10  # steps that count only from here; steps after the trace that do not
LAST = FIRST + TRACED - 1
TRACED_STEPS = range(FIRST, LAST + 1)
NEIGHBOURS = (
    *range(FIRST - TRACED - 2, FIRST - 2),
    *range(LAST + SETTLED, LAST + SETTLED + TRACED),
)
OTHERS = (*range(EARLY, FIRST - 2), *range(LAST + SETTLED, STEPS + 1))


def trained(store: Path, *, traced: bool) -> tuple[dict[int, float], dict[int, dict[str, Any]]]:
    """Seconds of each step of rank 0, and each rank's account of its trace."""
    text = tracing.request_text(FIRST, TRACED)
    run = wb.launch(
        "gpt", [*sys.argv[1:], "--steps", str(STEPS)], strategy="ddp", processes=2, cpu=True, store=store,
        environment={VARIABLE: text} if traced else None,
    )  # fmt: skip
    outcome = run.wait(600)
    assert outcome == "succeeded", run.logs(tail=20)
    lines = (run.directory / "metrics" / "rank-0.jsonl").read_text().splitlines()
    steps = {one["step"]: one for one in map(json.loads, lines)}
    assert [step for step, one in steps.items() if one.get("profiled")] == (
        list(TRACED_STEPS) if traced else []
    )
    folder = tracing.folder_of(RunPaths(run.directory), FIRST)
    return {step: one.get("step_seconds", 0.0) for step, one in steps.items()}, accounts(folder)


def median(seconds: dict[int, float], steps: Any) -> float:
    """Of those steps."""
    return statistics.median(seconds[step] for step in steps)


def main() -> None:
    """Print both ratios, the noise, and what the trace cost once."""
    inside: list[float] = []
    outside: list[float] = []
    bare: list[float] = []
    once: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as name:
        for turn in range(TURNS):
            never, _ = trained(Path(name), traced=False)
            traced, about = trained(Path(name), traced=True)
            bare.append(median(never, OTHERS))
            inside.append(median(traced, TRACED_STEPS) / median(traced, NEIGHBOURS))
            outside.append(median(traced, OTHERS) / bare[-1])
            once += [
                {key: one[key] for key in one if key.endswith("_seconds")} for one in about.values()
            ]
            step = median(never, OTHERS)
            print(
                f"turn {turn + 1}: step {1e3 * step:.0f} ms, traced {inside[-1]:.3f}, untraced {outside[-1]:.3f}",
                flush=True,
            )
    noise = max(bare) / min(bare) - 1
    ratio, other = statistics.median(inside), statistics.median(outside)
    kept = ratio <= PROMISED and other <= 1 + max(0.02, noise)
    print(f"a traced step / its neighbours         {ratio:.3f}  (promised: at most {PROMISED})")
    print(f"an untraced step / of an untraced run  {other:.3f}  (promised: 1, noise {noise:.3f})")
    for key in ("prepare_seconds", "start_seconds", "stop_seconds", "export_seconds"):
        worst = max(one[key] for one in once)
        print(f"once, {key.removesuffix('_seconds'):8} {1e3 * worst:8.1f} ms at most")
    print("kept" if kept else "BROKEN")
    sys.exit(not kept)


if __name__ == "__main__":
    main()

"""The command; see the package's docstring."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.gpu.battery import pod
from tests.gpu.battery.catalog import CASES
from tests.gpu.battery.runner import FINAL, line, results, run_battery
from tests.gpu.battery.values import FILES, Case, Setup
from tests.gpu.results import FOLDER
from workbench.store.files import write_text_atomic


def main() -> int:
    options = parse()
    cases = chosen(options.only)
    if options.list:
        for case in cases:
            print(f"{case.name:28} {case.group:12} at most {case.limit_seconds:.0f} s")
        return 0
    if options.keep:
        print(keep(options.out))
        return 0
    setup = chosen_setup(options)
    if setup.simulated:
        print("The driver is the simulated one: nothing below was measured on a GPU.", flush=True)
    if options.again:
        forget({case.name for case in cases}, setup.results)
    rows = run_battery(cases, setup, seconds=60 * options.minutes)
    names = {case.name for case in cases}
    last = {row["case"]: row for row in rows if row["case"] in names}
    counts = {
        outcome: sum(row["outcome"] == outcome for row in last.values())
        for outcome in (*sorted(FINAL), "cut")
    }
    print(", ".join(f"{count} {name}" for name, count in counts.items() if count), end="")
    print(f"; {len(cases) - len(last)} not started. Results: {setup.results}")
    for row in last.values():
        if row["outcome"] in {"failed", "error", "timeout"}:
            print(line(row))
    return 1 if counts["failed"] + counts["error"] + counts["timeout"] else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu.battery", description="Measure everything on one GPU."
    )
    parser.add_argument("--minutes", type=float, default=9.0, help="start nothing after this long")
    parser.add_argument("--out", type=Path, default=Path("battery"), help="folder of the results")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), help="default: cuda where there is one"
    )
    parser.add_argument(
        "--simulated",
        nargs="?",
        const=pod.DEFAULT_GPU,
        metavar="GPU",
        help=f"show a GPU that is not there and compute on the CPU ({pod.DEFAULT_GPU})",
    )
    parser.add_argument("--only", help="names or groups of cases, with commas")
    parser.add_argument("--again", action="store_true", help="also run cases that have a result")
    parser.add_argument("--list", action="store_true", help="list the cases and leave")
    parser.add_argument("--keep", action="store_true", help="copy the results to tests/gpu/results")
    return parser.parse_args()


def chosen_setup(options: argparse.Namespace) -> Setup:
    """On which device, and whether the GPUs are simulated; becomes a pod where that was asked."""
    simulated = pod.is_in_place()
    if options.simulated and not simulated:
        pod.become(options.simulated, sys.argv[1:])
    if simulated and options.device == "cuda":
        sys.exit("--device cuda measures a GPU, and the driver here is the simulated one.")
    card = Path("/dev/nvidiactl").exists() and not simulated
    device = options.device or ("cuda" if card else "cpu")
    if device == "cpu":  # threads that meet after each operation wait for each other on a busy CPU
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    return Setup(device=device, out=options.out.absolute(), simulated=simulated)


def chosen(only: str | None) -> tuple[Case, ...]:
    """Cases whose name or group is among the words."""
    if only is None:
        return CASES
    words = {word.strip() for word in only.split(",")}
    unknown = words - {case.name for case in CASES} - {case.group for case in CASES}
    if unknown:
        sys.exit(f"no case or group is called {', '.join(sorted(unknown))}; see --list")
    return tuple(case for case in CASES if {case.name, case.group} & words)


def forget(names: set[str], path: Path) -> None:
    """Drop the results of these cases."""
    if path.is_file():
        write_rows(path, [row for row in results(path) if row["case"] not in names])


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Replace the file at once: killed in between, the rows before are still there."""
    text = "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows)
    write_text_atomic(path, text)


def keep(folder: Path) -> Path:
    """Write the results of a card to where they are committed; the name has card and date."""
    path = folder / FILES["gpu"]
    measured = [
        row
        for row in results(path)
        if row["outcome"] != "cut" and row["requested_device"] == "cuda" and row.get("card")
    ]
    if not measured or any(row.get("simulated") for row in measured):
        sys.exit(f"{path} has no result of a GPU, and only those are kept.")
    card = re.sub(r"[^a-z0-9]+", "-", str(measured[0]["card"]["name"]).lower()).strip("-")
    FOLDER.mkdir(exist_ok=True)
    target = FOLDER / f"battery-{card}-{measured[0]['date'][:10]}.jsonl"
    write_rows(target, measured)
    return target


if __name__ == "__main__":
    sys.exit(main())

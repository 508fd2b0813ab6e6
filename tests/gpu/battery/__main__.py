"""The command; see the package's docstring."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from pathlib import Path

from tests.gpu.battery.catalog import CASES
from tests.gpu.battery.runner import FINAL, RESULTS, line, results, run_battery
from tests.gpu.battery.values import Case, Setup
from tests.gpu.results import FOLDER


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
    device = options.device or ("cuda" if Path("/dev/nvidiactl").exists() else "cpu")
    setup = Setup(device=device, out=options.out.absolute())
    if options.again:
        forget({case.name for case in cases}, setup.out)
    rows = run_battery(cases, setup, seconds=60 * options.minutes)
    names = {case.name for case in cases}
    last = {row["case"]: row for row in rows if row["case"] in names}
    counts = {
        outcome: sum(row["outcome"] == outcome for row in last.values())
        for outcome in (*sorted(FINAL), "cut")
    }
    print(", ".join(f"{count} {name}" for name, count in counts.items() if count), end="")
    print(f"; {len(cases) - len(last)} not started. Results: {setup.out / RESULTS}")
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
    parser.add_argument("--only", help="names or groups of cases, with commas")
    parser.add_argument("--again", action="store_true", help="also run cases that have a result")
    parser.add_argument("--list", action="store_true", help="list the cases and leave")
    parser.add_argument("--keep", action="store_true", help="copy the results to tests/gpu/results")
    return parser.parse_args()


def chosen(only: str | None) -> tuple[Case, ...]:
    """Cases whose name or group is among the words."""
    if only is None:
        return CASES
    words = {word.strip() for word in only.split(",")}
    unknown = words - {case.name for case in CASES} - {case.group for case in CASES}
    if unknown:
        sys.exit(f"no case or group is called {', '.join(sorted(unknown))}; see --list")
    return tuple(case for case in CASES if {case.name, case.group} & words)


def forget(names: set[str], folder: Path) -> None:
    """Drop the results of these cases."""
    kept = [row for row in results(folder) if row["case"] not in names]
    if folder.is_dir():
        text = "".join(json.dumps(row, sort_keys=True) + "\n" for row in kept)
        (folder / RESULTS).write_text(text)


def keep(folder: Path) -> Path:
    """Copy the results of a card to where they are committed; the name has card and date."""
    rows = [row for row in results(folder) if row["outcome"] != "cut"]
    measured = [row for row in rows if row["requested_device"] == "cuda" and row.get("card")]
    if not measured:
        sys.exit(f"{folder / RESULTS} has no result of a GPU, and only those are kept.")
    card = re.sub(r"[^a-z0-9]+", "-", str(measured[0]["card"]["name"]).lower()).strip("-")
    FOLDER.mkdir(exist_ok=True)
    target = FOLDER / f"battery-{card}-{measured[0]['date'][:10]}.jsonl"
    shutil.copyfile(folder / RESULTS, target)
    return target


if __name__ == "__main__":
    sys.exit(main())

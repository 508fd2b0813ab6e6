"""Runs public scripts through the launcher and writes tests/real_scripts.md.

    python -m tests.real_scripts --sources DIR [NAME ...]

DIR holds checkouts as <owner>__<name>. A script whose checkout or packages are missing is listed
with what is missing, and not as a success.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from pathlib import Path

import workbench as wb
from tests.real_scripts.table import SCRIPTS, Script
from workbench.store.layout import RunPaths

PAGE = Path(__file__).parent.parent / "real_scripts.md"
SECONDS = 600.0
HEAD = """# Public scripts, unmodified, through the launcher

Written by `python -m tests.real_scripts --sources DIR`; on CPU with gloo, on a machine shared with
other work. No line of a script is changed; what they would download is made locally
(`real_scripts/data.py`). transformers' examples are those of a public fork at 5.10.0.dev0, whose
`run_clm.py` has an option more. torchvision ran without its compiled operators.

Not run, since they cannot start here: Accelerate's `cv_example.py` (pretrained ResNet from the hub),
minGPT-ddp (needs hydra and GPUs), fast_neural_style and imagenet (pretrained weights, data).

| script | strategy | outcome | steps | loss first | loss last | captured | seconds |
|---|---|---|---|---|---|---|---|
"""


def attempt(script: Script, sources: Path) -> tuple[bool | None, str]:
    """Run one script; True = captured as promised, None = not run; and its row of the table."""
    path = script.file(sources)
    missing = script.missing()
    if path is None or missing:
        what = f"not run: needs {', '.join(missing)}" if missing else "not run: no checkout"
        return None, f"| {script.name} | {script.strategy} | {what} |  |  |  |  |  |\n"
    with tempfile.TemporaryDirectory() as name:
        work = Path(name) / "work"  # some write beside it
        work.mkdir()
        root = script.root(sources)
        script.prepare(work, root)
        begun, here = time.monotonic(), Path.cwd()
        os.chdir(root if script.in_root else work)
        try:
            run = wb.launch(
                path,
                [word.format(work=work) for word in script.arguments],
                strategy=script.strategy,
                processes=script.processes,
                cpu=True,
                store=work / "runs",
                environment={
                    **{key: one.format(work=work) for key, one in script.environment.items()},
                    **({"PYTHONPATH": str(root)} if script.import_root else {}),
                },
            )
        finally:
            os.chdir(here)
        late = ""
        try:
            if script.stops_at:
                run.wait(SECONDS, steps=script.stops_at)
                run.request_stop()
            run.wait(SECONDS)
        except wb.WorkbenchError as error:  # it continues for too long: a row, and the next script
            late = str(error)
        finally:
            run.stop(now=True)
        problem = late or wrong(script, run)
        row = _row(script, run, problem, time.monotonic() - begun)
    return not problem, row


def wrong(script: Script, run: wb.Run) -> str:
    """What was not captured as promised; "" when all was."""
    summary = run.summary()
    if summary["outcome"] not in script.outcomes:
        return f"outcome {summary['outcome']}: {summary.get('message')}"
    if not script.steps:
        return "" if summary.get("message") else "no message says why"
    losses = [row["loss"] for row in run.metrics() if row["loss"] is not None]
    if not summary["steps"] or not losses:
        return "no step or no loss"
    tenth = max(1, len(losses) // 10)
    first, last = sum(losses[:tenth]) / tenth, sum(losses[-tenth:]) / tenth
    if not all(map(math.isfinite, losses)):
        return "a loss is not finite"
    if script.checkpoints and not RunPaths(run.directory).saved.exists():
        return "no checkpoint noted"
    return "loss did not fall" if script.loss_falls and last >= first else ""


def _row(script: Script, run: wb.Run, problem: str, seconds: float) -> str:
    summary = run.summary()
    first, last = (
        "n/a" if summary[key] is None else f"{summary[key]:.3f}"
        for key in ("loss_first", "loss_last")
    )
    captured = "yes" if not problem else f"**no**: {problem}"
    outcome = summary["outcome"]
    if not script.steps:
        outcome = f"{outcome}: {str(summary.get('message'))[:140]}"
    cells = (
        *(script.name, f"{script.strategy} x{script.processes}", outcome, summary["steps"]),
        *(first, last, captured, f"{seconds:.0f}"),
    )
    return "| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |\n"


def _rows() -> dict[str, str]:
    """The page's rows so far, by script."""
    kept = PAGE.read_text().split("|---|\n")[-1].splitlines(keepends=True) if PAGE.exists() else []
    return {row.split("|")[1].strip(): row for row in kept if row.startswith("|")}


def main() -> None:
    """Run what is named, or all; exit code 1 when one was not captured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", type=Path, required=True)
    parser.add_argument("names", nargs="*", help="parts of names; default all")
    options = parser.parse_args()
    chosen = [
        script
        for script in SCRIPTS
        if not options.names or any(name in script.name for name in options.names)
    ]
    failed = 0
    for script in chosen:
        good, row = attempt(script, options.sources.resolve())
        failed += good is False
        sys.stdout.write(row)
        sys.stdout.flush()
        rows = {**_rows(), script.name: row}  # the others' rows stay, also of a run beside this
        ordered = [rows[one.name] for one in SCRIPTS if one.name in rows]
        PAGE.write_text(HEAD + "".join(ordered))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()

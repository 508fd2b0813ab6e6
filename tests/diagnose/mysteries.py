"""Makes the mysteries of notebook 10: recordings of real runs, without their names.

    python -m tests.diagnose.mysteries

Three are of the recordings beside this file; the runs with unequal batches and with a slow link are
made now, on this machine. The right answers are what was done to the runs.
"""

from __future__ import annotations

import json
import lzma
import tempfile
from pathlib import Path

from workbench_widgets.faults.mysteries import DATA, Answer, seals

import workbench as wb
from tests.diagnose.record import record
from tests.diagnose.recordings import FOLDER, load, unpacked

SCRIPT = Path(__file__).parent.parent / "scripts" / "uneven.py"
RECORDED: dict[str, tuple[str, str, Answer]] = {
    "A": ("held_out", "fsdp-4-forward-rank3-50", (3, "forward", "slow rank")),
    "C": ("chosen", "zero2-2-none-rank0-0", (None, "none", "nothing")),
    "D": ("held_out", "ddp-4-input-rank3-50", (3, "input", "slow loader")),
}
MADE: dict[str, tuple[tuple[str, ...], Answer]] = {
    "B": (("--rank", "2", "--times", "4", "--work", "0.04"), (2, "backward", "unequal batches")),
    "E": (("--link", "20", "--work", "0.05"), (None, "exchange", "slow link")),
}
_RUN = {"run", "processes", "device", "created_at", "strategy", "strategy_name", "recovery"}
_UNREAD = frozenset({"lr", "memory_bytes", "batch", "grad_norm"})


def of_recording(file: str, name: str) -> dict[str, str]:
    """The files of a recorded run, its order of arrival joined."""
    with tempfile.TemporaryDirectory() as folder:
        paths = unpacked(Path(folder) / "run", load(FOLDER / f"{file}.json.xz")[name])
        files = load(FOLDER / f"{file}.json.xz")[name]
        return {**files, "arrivals.jsonl": paths.arrivals.read_text()}


def made(words: tuple[str, ...], store: Path) -> dict[str, str]:
    """The files of a run that is made now."""
    run = wb.launch(SCRIPT, list(words), cpu=True, store=store, processes=4, strategy="ddp")
    if run.wait(timeout=400) != "succeeded":
        raise RuntimeError(run.logs(tail=30))
    return record(Path(run.directory))


def closed(name: str, files: dict[str, str]) -> dict[str, str]:
    """Only what evidence and rules read, without what tells where it is from."""
    run = json.loads(files["run.json"])
    kept = {key: one for key, one in run.items() if key in _RUN}
    found = {"run.json": json.dumps({**kept, "run": f"mystery-{name}"})}
    for file, text in sorted(files.items()):
        if file.endswith(".start.json") or file in {"exit.json", "arrivals.jsonl"}:
            found[file] = text
        elif file.startswith("metrics/") and file.endswith(".jsonl"):
            lines = (json.loads(line) for line in text.splitlines())
            short = ({k: one for k, one in line.items() if k not in _UNREAD} for line in lines)
            found[file] = "".join(f"{json.dumps(line)}\n" for line in short)
    return found


def main() -> None:
    """Write the package data of the mysteries."""
    files = {name: of_recording(file, run) for name, (file, run, _) in RECORDED.items()}
    answers = {name: one[-1] for name, one in {**RECORDED, **MADE}.items()}
    with tempfile.TemporaryDirectory() as folder:
        files |= {name: made(words, Path(folder)) for name, (words, _) in MADE.items()}
    document = {
        name: {"files": closed(name, files[name]), "seals": seals(name, answers[name])}
        for name in sorted(files)
    }
    text = json.dumps(document, sort_keys=True)
    DATA.write_bytes(lzma.compress(text.encode(), preset=9))
    print(f"{DATA}: {len(files)} mysteries, {DATA.stat().st_size} bytes")


if __name__ == "__main__":
    main()

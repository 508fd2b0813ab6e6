"""What the checkpoint matrix has found, in a folder: a table that was cut off goes on from there.

state           which code and libraries it was found with; another state begins anew
cells.jsonl     a line per cell, appended as soon as it is known
written/        per setting the digests of what it saved
saved/          per setting its checkpoint
loaded/         per setting and rank the digests of what it loaded, a line per checkpoint
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_CODE = ("workbench/recipes", "workbench/recover")
_LIBRARIES = ("torch", "accelerate", "deepspeed")
Digests = list[dict[str, Any]]


def state() -> str:
    """Of the code and the libraries: cells of two states do not belong in one table."""
    found = hashlib.sha256()
    for path in (path for folder in _CODE for path in sorted((ROOT / folder).rglob("*.py"))):
        if path.name.startswith("test_") or "soak" in path.name:
            continue
        found.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    for name in _LIBRARIES:
        try:
            found.update(f"{name} {metadata.version(name)}".encode())
        except metadata.PackageNotFoundError:
            found.update(f"no {name}".encode())
    return found.hexdigest()


class Record:
    """The folder, opened; emptied first where it is of another state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        now, kept = state(), folder / "state"
        self.began_anew = kept.exists() and kept.read_text(encoding="utf-8") != now
        if self.began_anew:
            shutil.rmtree(folder)
        for name in ("written", "saved", "loaded"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        kept.write_text(now, encoding="utf-8")
        for path in folder.rglob("*.jsonl"):
            _cut_torn_end(path)
        self.cells = dict[tuple[str, str], str]()
        self.cpu_seconds = 0.0
        for line in _lines(folder / "cells.jsonl"):
            self.cells[line["row"], line["column"]] = line["found"]
            self.cpu_seconds += line["cpu_seconds"]

    def add(self, row: str, column: str, found: str, cpu_seconds: float) -> None:
        """A cell: `EXACT`, or what is wrong."""
        self.cells[row, column] = found
        self.cpu_seconds += cpu_seconds
        line = {"row": row, "column": column, "found": found, "cpu_seconds": cpu_seconds}
        with (self.folder / "cells.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def saved(self, setting: str) -> Path:
        """Where `setting` keeps its checkpoint."""
        return self.folder / "saved" / setting

    def write(self, setting: str, digests: Digests) -> None:
        """Keep the digests of what each rank of `setting` saved."""
        (self.folder / "written" / setting).write_text(json.dumps(digests), encoding="utf-8")

    def written(self, setting: str) -> Digests | None:
        """The digests of what each rank of `setting` saved."""
        try:
            return json.loads((self.folder / "written" / setting).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None

    def loads(self, setting: str) -> Path:
        """The folder in which the ranks of `setting` tell what they loaded."""
        place = self.folder / "loaded" / setting
        place.mkdir(exist_ok=True)
        return place

    def loaded(self, setting: str, ranks: int) -> dict[str, Digests]:
        """Per checkpoint that all ranks of `setting` were through with: what each loaded."""
        of_rank = [
            {line["of"]: line for line in _lines(self.loads(setting) / f"{rank}.jsonl")}
            for rank in range(ranks)
        ]
        names = set.intersection(*(set(one) for one in of_rank))
        return {name: [one[name] for one in of_rank] for name in names}


def append_loaded(folder: Path, rank: int, line: dict[str, Any]) -> None:
    """In a rank: tell what it loaded."""
    with (folder / f"{rank}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        yield from map(json.loads, path.read_text(encoding="utf-8").splitlines())


def _cut_torn_end(path: Path) -> None:
    """Drop a last line that was cut off while it was written."""
    data = path.read_bytes()
    if not data.endswith(b"\n"):
        path.write_bytes(data[: data.rfind(b"\n") + 1])

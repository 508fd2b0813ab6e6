"""The checkpoint matrix: what every layout saves, every other layout loads, to the last bit.

    python -m tests.recover.matrix [--pairs plain|pairwise|third|all] [--page FILE]

A row is a layout of the recipe (strategy, ranks, options) that trains, saves and trains on; a
column one that loads what all rows have saved. A cell is right when every weight and moment of the
whole model has the bits that were saved, under the names that the model itself uses; in the same
layout also when the random states and the next step's result are those of the run that went on.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import workbench as wb
from workbench.errors import WorkbenchError
from workbench.launch.supported import check_supported
from workbench.recipes import checkpoint_files
from workbench.recover import dcp_table

SHAPE = (
    *("--layers", "3", "--hidden", "32", "--heads", "4", "--seq-len", "16", "--warmup", "2"),
    *("--steps", "4", "--eval-every", "0", "--micro-batch", "2"),
)
STRATEGIES = (
    *(("single", 1), ("ddp", 2), ("ddp", 4), ("fsdp", 2), ("fsdp", 3), ("fsdp-grad-op", 2)),
    *(("hsdp", 4), ("zero1-torch", 2), ("zero1", 2), ("zero2", 2), ("zero2", 3), ("zero3", 2)),
    *(("zero3", 3), ("tp", 2), ("tp", 4), ("pp", 2), ("pp", 3), ("cp", 2)),
    *(("fsdp2-tp2", 4), ("dp2-tp2", 4), ("pp2-dp2", 4), ("pp2-tp2", 4), ("cp2-tp2", 4)),
)
OPTIONS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "": ({}, ()),
    "recompute": ({"recompute": "full"}, ()),
    "offload optimizer": ({"offload": ("optimizer",)}, ()),
    "offload all": ({"offload": ("optimizer", "parameters")}, ()),
    "full state dict": ({"state_dict": "full"}, ()),
    "compile": ({}, ("--compile",)),
    "accumulate 2": ({}, ("--accumulate", "2")),
}
# Pairs of a few that differ in all ways: what `make test` runs.
REPRESENTATIVE = (
    *("single x1", "ddp x2 recompute", "fsdp x2 recompute", "fsdp x3 offload all"),
    *("hsdp x4 compile", "zero1-torch x2", "tp x2 recompute", "pp x3", "cp x2 accumulate 2"),
    *("fsdp2-tp2 x4 recompute", "pp2-dp2 x4 accumulate 2"),
)
EXACT, REFUSED = "exact", "refused"
PAIRS = ("plain", "pairwise", "third", "all")
Pairs = Callable[["Setting", "Setting"], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row or column."""

    name: str
    layout: str
    """Strategy and ranks, without options."""
    strategy: wb.Strategy
    arguments: tuple[str, ...]

    @property
    def plain(self) -> bool:
        """Whether it has no options."""
        return self.name == self.layout

    @property
    def folder(self) -> str:
        """A name for its files."""
        return self.name.replace(" ", "-")


@dataclass
class Matrix:
    """What was found; a cell is `EXACT`, or what is wrong."""

    settings: list[Setting]
    not_offered: dict[str, str] = field(default_factory=dict[str, str])
    """Combinations that the workbench refuses to launch, with its sentence."""
    cells: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    cpu_seconds: float = 0.0

    @property
    def wrong(self) -> dict[tuple[str, str], str]:
        """Cells that are not exact."""
        return {cell: found for cell, found in self.cells.items() if found != EXACT}


def settings() -> tuple[list[Setting], dict[str, str]]:
    """All that can be launched, and the refusals of the others."""
    from .forked_ranks import RECIPE

    found, refused = list[Setting](), dict[str, str]()
    for (name, ranks), (option, (values, arguments)) in (
        (strategy, option) for strategy in STRATEGIES for option in OPTIONS.items()
    ):
        said = f"{name} x{ranks} {option}".strip()
        engine = {"engine": "torch"} if name.endswith("-torch") else {}
        try:
            strategy = wb.Strategy.parse(name.removesuffix("-torch"), ranks)
            strategy = strategy.with_options(**engine, **values)
            check_supported(strategy, RECIPE.splits, "cpu")
        except WorkbenchError as error:
            refused[said] = str(error)
        else:
            layout = f"{name} x{ranks}"
            one = Setting(name=said, layout=layout, strategy=strategy, arguments=arguments)
            found.append(one)
    return found, refused


def run(
    chosen: Sequence[Setting],
    folder: Path,
    *,
    pairs: Pairs = lambda _row, _column: True,
    say: Callable[[str], object] = lambda _text: None,
) -> Matrix:
    """Save under each setting, then load under each what `pairs` wants of the others."""
    from . import matrix_ranks
    from .forked_ranks import Layout, RanksFailedError

    matrix = Matrix(list(chosen))
    began = _cpu_seconds()
    layouts = {one.name: Layout(one.strategy, folder / "config" / one.folder) for one in chosen}
    written = dict[str, list[dict[str, Any]]]()
    for one in chosen:
        arguments, place = _arguments(one, layouts[one.name]), folder / "saved" / one.folder
        try:
            written[one.name] = layouts[one.name].run(partial(matrix_ranks.save, arguments, place))
        except RanksFailedError as error:
            matrix.cells[one.name, "saves"] = str(error)
        else:
            matrix.cells[one.name, "saves"] = _on_disk(place)
        say(f"saved: {one.name}: {matrix.cells[one.name, 'saves']}")
    for reader in chosen:
        sources = [one for one in chosen if one.name in written and pairs(one, reader)]
        places = [_checkpoint(folder / "saved" / one.folder) for one in sources]
        arguments = _arguments(reader, layouts[reader.name])
        try:
            found = layouts[reader.name].run(partial(matrix_ranks.load, arguments, places))
        except RanksFailedError as error:
            matrix.cells |= {(one.name, reader.name): str(error) for one in sources}
        else:
            for number, source in enumerate(sources):
                own = [of_rank[number] for of_rank in found]
                cell = compare(written[source.name], own, same=source == reader)
                matrix.cells[source.name, reader.name] = cell
        wrong = [one.name for one in sources if matrix.cells[one.name, reader.name] != EXACT]
        say(f"loaded {len(sources)}: {reader.name}: {f'not {wrong}' if wrong else EXACT}")
    matrix.cpu_seconds = _cpu_seconds() - began
    return matrix


def with_a_plain_side(row: Setting, column: Setting) -> bool:
    """Every option beside every layout: one of both is plain, or they differ in options alone."""
    return row.plain or column.plain or row.layout == column.layout


def pairwise(settings: Sequence[Setting], seed: int = 0) -> Pairs:
    """Every pair of layouts once, with options that are drawn; and each setting with itself."""
    dice, drawn = random.Random(seed), set[tuple[str, str]]()
    of_layout = dict[str, list[str]]()
    for one in settings:
        of_layout.setdefault(one.layout, []).append(one.name)
        drawn.add((one.name, one.name))
    for rows in of_layout.values():
        drawn |= {(dice.choice(rows), dice.choice(columns)) for columns in of_layout.values()}
    return lambda row, column: (row.name, column.name) in drawn


def every_third(settings: Sequence[Setting]) -> Pairs:
    """A third of all pairs, and each setting with itself."""
    place = {one.name: number for number, one in enumerate(settings)}
    return lambda row, column: row == column or (place[row.name] + place[column.name]) % 3 == 0


def _pairs(name: str, chosen: Sequence[Setting]) -> Pairs:
    if name == "pairwise":
        return pairwise(chosen)
    if name == "third":
        return every_third(chosen)
    return with_a_plain_side if name == "plain" else lambda _row, _column: True


def _arguments(setting: Setting, layout: Any) -> list[str]:
    return [*SHAPE, *layout.flags, *setting.arguments]


def _checkpoint(folder: Path) -> Path:
    from .matrix_ranks import SAVED_AT

    return folder / checkpoint_files.STEP.format(SAVED_AT)


def _on_disk(folder: Path) -> str:
    """What a verification says, as a cell."""
    checkpoint = _checkpoint(folder)
    return checkpoint_files.why_broken(checkpoint) or dcp_table.why_unreadable(checkpoint) or EXACT


def compare(saved: list[dict[str, Any]], loaded: list[dict[str, Any]], *, same: bool) -> str:
    for of_rank in loaded:
        if REFUSED in of_rank:
            return f"{REFUSED}: {of_rank[REFUSED]}"
    before, after = saved[0]["saved"], loaded[0]["saved"]
    if before.keys() != after.keys():
        return f"other names: {sorted(before.keys() ^ after.keys())[:3]}"
    if wrong := [name for name, digest in before.items() if after[name] != digest]:
        return f"other bits in {len(wrong)} of {len(before)}: {sorted(wrong)[:3]}"
    if len(saved) == len(loaded):
        randoms = zip(saved, loaded, strict=True)
        if wrong := [rank for rank, (a, b) in enumerate(randoms) if a["random"] != b["random"]]:
            return f"other random states on ranks {wrong}"
    if same and saved[0]["after"] != loaded[0]["after"]:
        return "the next step differs from that of the run that went on"
    return EXACT


def _cpu_seconds() -> float:
    own, children = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def prepare() -> None:
    """Load what ranks need, once, before the first fork."""
    os.environ["OMP_NUM_THREADS"] = "1"
    importlib.import_module(f"{__package__}.matrix_ranks")
    importlib.import_module("torch._dynamo")
    os.environ["DS_ACCELERATOR"] = "cpu"
    try:
        importlib.import_module("deepspeed")
    except ImportError:
        print("deepspeed is not installed: its rows are left out", file=sys.stderr)


def page(matrix: Matrix) -> str:
    """The matrix in Markdown: a line per row, then all that is not exact."""
    lines = ["# Checkpoint matrix", "", str(__doc__).split("\n\n", 2)[2].strip(), ""]
    names = [one.name for one in matrix.settings]
    exact = sum(found == EXACT for found in matrix.cells.values())
    cost = f"{matrix.cpu_seconds:.0f} CPU seconds"
    each = f"{matrix.cpu_seconds / max(1, len(matrix.cells)):.2f} per cell"
    lines += [
        f"{len(names)} settings, {len(matrix.cells)} cells, {exact} exact; {cost}, {each}.",
        "",
    ]
    lines += ["| saved by | saved and verified | loaded exactly by | not by |", "|---|---|---|---|"]
    for name in names:
        saves = matrix.cells.get((name, "saves"), "")
        cells = {column: found for (row, column), found in matrix.cells.items() if row == name}
        cells.pop("saves", None)
        wrong = [column for column, found in cells.items() if found != EXACT]
        lines.append(
            f"| {name} | {'yes' if saves == EXACT else 'no'} | "
            f"{len(cells) - len(wrong)} of {len(cells)} | {', '.join(wrong) or '-'} |"
        )
    if matrix.wrong:
        lines += ["", "## What is wrong", ""]
        lines += [f"- {row} -> {column}: {found}" for (row, column), found in matrix.wrong.items()]
    lines += ["", "## Not offered: the launch is refused", ""]
    lines += [f"- {name}: {why}" for name, why in matrix.not_offered.items()]
    return "\n".join(lines) + "\n"


def main(arguments: Iterable[str] | None = None) -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--only", action="append", help="a setting by its name; may be repeated")
    parser.add_argument("--page", type=Path, help="write the table to this file")
    parser.add_argument("--pairs", choices=PAIRS, default="plain")
    parser.add_argument("--result", type=Path, help="write what was found to this file, as JSON")
    options = parser.parse_args(None if arguments is None else list(arguments))
    prepare()
    chosen, refused = settings()
    if options.only:
        chosen = [one for one in chosen if one.name in options.only]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="matrix-") as folder:
        pairs = _pairs(options.pairs, chosen)
        matrix = run(chosen, Path(folder), pairs=pairs, say=lambda text: print(text, flush=True))
    matrix.not_offered = refused
    text = page(matrix)
    if options.result:
        wrong = {f"{row} -> {column}": why for (row, column), why in matrix.wrong.items()}
        found = {"settings": len(chosen), "cells": len(matrix.cells), "wrong": wrong}
        found["cpu_seconds"] = round(matrix.cpu_seconds, 1)
        options.result.write_text(json.dumps(found, indent=1), encoding="utf-8")
    if options.page:
        options.page.write_text(text, encoding="utf-8")
    print(text)
    print(f"{time.monotonic() - began:.0f} s")
    sys.exit(1 if matrix.wrong else 0)


if __name__ == "__main__":
    main()

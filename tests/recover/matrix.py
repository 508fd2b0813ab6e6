"""The checkpoint matrix: what every layout saves, every other layout loads, to the last bit.

    python -m tests.recover.matrix [--pairs layouts|pairwise|sample|third|all] [--page FILE] [--folder DIR]

A row is a layout of the recipe (strategy, ranks, options) that trains, saves and trains on; a
column one that loads what all rows have saved. A cell is right when every weight and moment of the
whole model has the bits that were saved, under the names that the model itself uses; in the same
layout also when the random states and the next step's result are those of the run that went on.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import math
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import workbench as wb
from workbench.describe.supported import check_supported
from workbench.errors import WorkbenchError
from workbench.recipes import checkpoint_files
from workbench.recover import dcp_table

from . import matrix_pairs
from .matrix_record import Record

if TYPE_CHECKING:
    from .forked_ranks import Layout

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
_ABOUT = str(__doc__).split("\n\n", 2)[2].strip()
EXACT, REFUSED, SAVES = "exact", "refused", "saves"
# What it loads when its engine is built: seconds in each rank otherwise.
_OF_DEEPSPEED = (
    *("deepspeed", "deepspeed.runtime.superoffload.superoffload_stage3"),
    *("transformers.integrations.deepspeed", "torch._dynamo.backends.debugging"),
    *("torch._inductor.compile_fx", "torch._inductor.utils"),
)
CLOSE = "exact; the next step but for rounding"
ROUNDING = """
DDP sorts its buckets anew after the first backward pass of a process, and the order in which three
ranks or more are summed follows the buckets. So a process that has just resumed sums its first step
in another order than one that went on. (`--find-unused` keeps the order, and the next step is exact.)
""".strip()


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """What was found; a cell is `EXACT`, or what is wrong."""

    settings: list[Setting]
    cells: dict[tuple[str, str], str]
    cpu_seconds: float
    not_offered: dict[str, str] = field(default_factory=dict[str, str])
    """Combinations that the workbench refuses to launch, with its sentence."""

    @property
    def wrong(self) -> dict[tuple[str, str], str]:
        """Cells that are not exact."""
        return {cell: found for cell, found in self.cells.items() if found not in {EXACT, CLOSE}}


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
    record: Record,
    *,
    pairs: Callable[[Setting, Setting], bool] = lambda _row, _column: True,
    say: Callable[[str], object] = lambda _text: None,
) -> Matrix:
    """Save under each setting, then load under each what `pairs` wants of the others.

    What `record` has already is not done again.
    """
    from .forked_ranks import Layout

    with tempfile.TemporaryDirectory(prefix="matrix-") as config:
        layouts = {one.name: Layout(one.strategy, Path(config) / one.folder) for one in chosen}
        for one in chosen:
            if (one.name, SAVES) not in record.cells:
                _save(one, layouts[one.name], record)
                say(f"saved: {one.name}: {record.cells[one.name, SAVES]}")
        for reader in sorted(chosen, key=lambda one: not one.plain):
            sources = [
                one
                for one in chosen
                if pairs(one, reader)
                and (one.name, reader.name) not in record.cells
                and record.written(one.folder) is not None
            ]
            if not sources:
                continue
            _load_all(reader, sources, layouts[reader.name], record)
            cells = {one.name: record.cells[one.name, reader.name] for one in sources}
            wrong = [name for name, found in cells.items() if found not in {EXACT, CLOSE}]
            say(f"loaded {len(sources)}: {reader.name}: {f'not {wrong}' if wrong else EXACT}")
    wanted = {(row.name, column.name) for row in chosen for column in chosen if pairs(row, column)}
    wanted |= {(one.name, SAVES) for one in chosen}
    cells = {cell: found for cell, found in record.cells.items() if cell in wanted}
    return Matrix(settings=list(chosen), cells=cells, cpu_seconds=record.cpu_seconds)


def _save(setting: Setting, layout: Layout, record: Record) -> None:
    from . import matrix_ranks
    from .forked_ranks import RanksFailedError

    began, place = _cpu_seconds(), record.saved(setting.folder)
    shutil.rmtree(place, ignore_errors=True)
    try:
        written = layout.run(partial(matrix_ranks.save, _arguments(setting, layout), place))
    except RanksFailedError as error:
        found = str(error)
    else:
        record.write(setting.folder, written)
        found = _on_disk(place)
    record.add(setting.name, SAVES, found, _cpu_seconds() - began)


def _load_all(reader: Setting, sources: Sequence[Setting], layout: Layout, record: Record) -> None:
    """Load `sources` one after the other; ranks that fail at one are started again behind it."""
    from . import matrix_ranks
    from .forked_ranks import RanksFailedError

    arguments, folder = _arguments(reader, layout), record.loads(reader.folder)
    left = list(sources)
    while left:
        began, failed = _cpu_seconds(), None
        loaded = record.loaded(reader.folder, layout.ranks)
        ahead = [
            matrix_ranks.Source(
                name=one.name,
                place=_checkpoint(record.saved(one.folder)),
                same=one == reader,
                train=one.plain,
            )
            for one in left
            if one.name not in loaded
        ]
        try:
            if ahead:
                seconds = 60.0 + matrix_ranks.LOAD_SECONDS * len(ahead)
                layout.run(partial(matrix_ranks.load, arguments, ahead, folder), seconds)
        except RanksFailedError as error:
            failed = str(error)
        loaded = record.loaded(reader.folder, layout.ranks)
        cost = (_cpu_seconds() - began) / max(1, sum(one.name in loaded for one in left))
        for one in [one for one in left if one.name in loaded]:
            written = record.written(one.folder) or []
            cell = compare(written, loaded[one.name], same=one == reader)
            record.add(one.name, reader.name, cell, cost)
            left.remove(one)
        if failed is not None and left:
            record.add(left.pop(0).name, reader.name, failed, 0.0)


def _arguments(setting: Setting, layout: Layout) -> list[str]:
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
    return _next_step(saved[0], loaded[0], len(saved)) if same else EXACT


def _next_step(saved: dict[str, Any], loaded: dict[str, Any], ranks: int) -> str:
    if saved["after"] == loaded["after"]:
        return EXACT
    if ranks > 2 and _close(saved["norms"], loaded["norms"]):
        return CLOSE
    return "the next step differs from that of the run that went on"


def _close(before: dict[str, float], after: dict[str, float]) -> bool:
    """Whether both are of DDP, and differ by rounding alone."""
    return bool(before) and all(
        math.isclose(after[name], before[name], rel_tol=1e-5) for name in before
    )


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
        for name in _OF_DEEPSPEED:
            importlib.import_module(name)
    except ImportError:
        print("deepspeed is not installed: its rows are left out", file=sys.stderr)
    gc.freeze()  # ranks collect only what they make themselves: DeepSpeed's ZeRO-3 collects often


def main(arguments: Iterable[str] | None = None) -> None:
    """From the command line."""
    from .matrix_page import page

    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--only", action="append", help="a setting by its name; may be repeated")
    parser.add_argument("--page", type=Path, help="write the table to this file")
    parser.add_argument("--pairs", choices=matrix_pairs.NAMES, default="layouts")
    parser.add_argument("--folder", type=Path, help="keep all in this folder, to go on from there")
    parser.add_argument("--result", type=Path, help="write what was found to this file, as JSON")
    options = parser.parse_args(None if arguments is None else list(arguments))
    prepare()
    chosen, refused = settings()
    if options.only:
        chosen = [one for one in chosen if one.name in options.only]
    elif options.pairs == "sample":
        chosen = matrix_pairs.two_of_each_layout(chosen)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = options.folder
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="matrix-")))
        record = Record(folder)
        if record.began_anew:
            print("The code has changed since the table was begun: it begins anew.", flush=True)
        elif record.cells:
            print(f"{len(record.cells)} cells are known already.", flush=True)
        pairs = matrix_pairs.named(options.pairs, chosen)
        matrix = run(chosen, record, pairs=pairs, say=lambda text: print(text, flush=True))
    text = page(replace(matrix, not_offered=refused), _ABOUT)
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

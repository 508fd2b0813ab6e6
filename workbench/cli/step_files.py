"""The optimizer steps of runs as files: the options that name them, and the writing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from workbench.cli.progress import status_line
from workbench.cli.terminal import errors
from workbench.compare import export
from workbench.store.layout import RunPaths

CsvOption = Annotated[
    Path | None, typer.Option("--csv", metavar="FILE", help="Write every step as CSV.")
]
ParquetOption = Annotated[
    Path | None,
    typer.Option("--parquet", metavar="FILE", help="The same as Parquet (pip install pyarrow)."),
]


def write_steps(runs: Sequence[RunPaths], path: Path) -> None:
    """Write every optimizer step of `runs`, and say how many.

    Raises:
        HostError: Parquet without pyarrow.
        StoreError: the file cannot be written.
    """
    rows = (row for paths in runs for row in export.steps(paths))
    with status_line() as show:

        def on_progress(done: int) -> None:
            if show is not None:
                show(f"{done:,} steps written to {path}")

        done = export.write(path, rows, export.step_columns(runs), on_progress)
    of = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    errors.print(f"{done:,} steps of {of} written to {path}", markup=False, soft_wrap=True)

"""``make bench``: every performance promise of the workbench, measured."""

from __future__ import annotations

import argparse
import sys

from rich.console import Console
from rich.table import Table

from tests.benchmarks.rows import BENCHMARKS, Size


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 1 where a promise is missed. A smoke run judges nothing."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument(
        "rows", nargs="*", metavar="ROW", help=f"one of {', '.join(BENCHMARKS)} (default: all)"
    )
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument(
        "--quick", dest="size", action="store_const", const=Size.QUICK, help="smaller sizes"
    )
    sizes.add_argument(
        "--smoke", dest="size", action="store_const", const=Size.SMOKE,
        help="the smallest sizes: shows that every row runs, judges nothing",
    )  # fmt: skip
    given = parser.parse_args(arguments)
    unknown = [name for name in given.rows if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no row {unknown[0]!r}; choose from {', '.join(BENCHMARKS)}")
    return measure(given.rows or list(BENCHMARKS), given.size or Size.FULL)


def measure(names: list[str], size: Size) -> int:
    """The exit code: how the promises of these rows were kept."""
    console = Console()
    table = Table("promise", "measured", "bound", "", title="Benchmarks of this run")
    missed = 0
    for name in names:
        console.print(f"[dim]{name} …[/]")
        for promise, measured, bound, ok in BENCHMARKS[name](size):
            judged = size is not Size.SMOKE
            missed += judged and not ok
            verdict = "[green]ok[/]" if ok else "[red]missed[/]"
            table.add_row(promise, measured, bound, verdict if judged else "not judged")
    console.print(table)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Price files: the embedded table, the user's own, and what is known of each provider.

A row that cannot be read is reported with file, line and column, and costs no other row.
"""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from workbench.describe.accelerators import find
from workbench.describe.hardware import Network
from workbench.describe.price import MARKS, Offer, Terms
from workbench.errors import UnknownNameError, UsageError
from workbench.units import GIB

REQUIRED = ("provider", "gpu", "gpus", "usd_per_hour")
OPTIONAL = (
    *("name", "spot_usd_per_hour", "region", "network", "max_nodes", "cpu_cores", "memory_gib"),
    *("disk_gb", "date", "notes"),
)
EMBEDDED = ("kind", "date_basis", "confidence", "marks", "source")
PROVIDERS = Path(__file__).parent / "data" / "providers.csv"
ANY_INSTANCE = "*"
MOST = 1_000_000  # dollars per hour, GPUs, cores: beyond it is a typing mistake


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceFile:
    """What a file holds, and what in it could not be read."""

    offers: tuple[Offer, ...] = ()
    """The rows that are offers."""
    quotes: tuple[Offer, ...] = ()
    """Rows kept for comparison alone: quotes of articles, superseded or other products."""
    problems: tuple[str, ...] = ()
    """One sentence per row (or file) that could not be used."""


def read_prices(path: Path, *, own: bool) -> PriceFile:
    """Read a price file; nothing is raised, everything wrong is in `problems`.

    Args:
        path: a CSV file with a header line.
        own: the user's file: no kind, source and confidence of its own.
    """
    try:
        lines = _lines(path)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        return PriceFile(problems=(f"{path}: cannot be read ({error}).",))
    header = [cell.strip().lower() for cell in lines[0][1]] if lines else []
    problem = _header_problem(path, header, own=own)
    if problem:
        return PriceFile(problems=(problem,))
    offers: list[Offer] = []
    quotes: list[Offer] = []
    problems: list[str] = []
    for line, cells in lines[1:]:
        row = _Row(path, line, header, cells)
        try:
            row.require_width(len(cells))
            offer = _own(row) if own else _embedded(row)
        except UsageError as error:
            problems.append(str(error))
            continue
        (quotes if row.text("kind") == "quote" else offers).append(offer)
    return PriceFile(offers=tuple(offers), quotes=tuple(quotes), problems=tuple(problems))


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    """The lines with anything in them, with their numbers (a quoted cell may span several)."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file)
        return [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]


def _header_problem(path: Path, header: Sequence[str], *, own: bool) -> str | None:
    allowed = (*REQUIRED, *OPTIONAL, *(() if own else EMBEDDED))
    columns = f"Needed: {', '.join(REQUIRED)}; optional: {', '.join(OPTIONAL)}."
    missing = [name for name in REQUIRED if name not in header]
    if missing:
        return f"{path}, line 1: no column {', '.join(missing)}. {columns}"
    unknown = [name for name in header if name not in allowed]
    if unknown:
        return f"{path}, line 1: unknown column {', '.join(map(repr, unknown))}. {columns}"
    return None


class _Row:
    """One line, whose cells are read by column and refused by file, line and column."""

    def __init__(self, path: Path, line: int, header: Sequence[str], cells: Sequence[str]) -> None:
        self.path, self.line = path, line
        self.cells = dict(zip(header, (cell.strip() for cell in cells), strict=False))

    def text(self, column: str) -> str:
        return self.cells.get(column, "")

    def refuse(self, column: str, reason: str) -> UsageError:
        return UsageError(f"{self.path}, line {self.line}, column {column}: {reason}")

    def require_width(self, width: int) -> None:
        if width > len(self.cells):
            raise UsageError(
                f"{self.path}, line {self.line}: {width} cells under {len(self.cells)} columns. "
                'Put a cell that holds a comma in quotes: "1,234".'
            )

    def needed(self, column: str) -> str:
        if not self.text(column):
            raise self.refuse(column, "empty, and every row needs it.")
        return self.text(column)

    def number(self, column: str) -> float | None:
        text = self.text(column)
        if not text:
            return None
        try:
            value = float(text.removeprefix("$"))
        except ValueError:
            value = math.nan
        if not 0 < value < MOST:
            raise self.refuse(
                column, f"{text!r} is not a number above 0. Leave it empty when it is unknown."
            )
        return value

    def integer(self, column: str) -> int | None:
        value = self.number(column)
        if value is not None and value != int(value):
            raise self.refuse(column, f"{self.text(column)!r} is not a whole number.")
        return None if value is None else int(value)

    def gpu(self) -> str:
        try:
            return find(self.needed("gpu")).id
        except UnknownNameError as error:
            raise self.refuse("gpu", str(error)) from None

    def network(self) -> Network | None:
        text = self.text("network")
        try:
            return Network.parse(text) if text else None
        except UsageError as error:
            raise self.refuse("network", str(error)) from None


def _own(row: _Row) -> Offer:
    return _offer(
        row,
        name=row.text("name") or "own price",
        source=f"{row.path}, line {row.line}",
        confidence="own",
        marks=(),
    )


def _embedded(row: _Row) -> Offer:
    marks = tuple(mark for mark in MARKS if mark in row.text("marks").split(";"))
    return _offer(
        row,
        name=row.needed("name"),
        source=row.needed("source"),
        confidence=row.needed("confidence"),
        marks=marks,
    )


def _offer(row: _Row, *, name: str, source: str, confidence: str, marks: tuple[str, ...]) -> Offer:
    provider = row.needed("provider").lower()
    gpus = row.integer("gpus")
    if gpus is None:
        raise row.refuse("gpus", "empty, and every row needs it.")
    network, nodes = fabric(provider, name)
    memory = row.number("memory_gib")
    basis = row.text("date_basis")
    notes = (row.text("notes"), f"date: {basis}" if basis else "")
    return Offer(
        provider=provider,
        name=name,
        gpu=row.gpu(),
        gpus=gpus,
        usd_per_hour=row.number("usd_per_hour"),
        spot_usd_per_hour=row.number("spot_usd_per_hour"),
        region=row.text("region"),
        max_nodes=row.integer("max_nodes") or nodes,
        network=row.network() or network,
        cpu_cores=row.integer("cpu_cores"),
        memory_bytes=None if memory is None else int(memory * GIB),
        disk_gb=row.number("disk_gb"),
        source=source,
        date=row.text("date"),
        confidence=confidence,
        marks=marks,
        notes="; ".join(text for text in notes if text),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcedValue:
    """One cell of what is known, with where it was read."""

    provider: str
    """Short name, as in `Offer.provider`."""
    instances: str
    """Glob over instance names; "*" = the provider as a whole."""
    fact: str
    """Field of `Terms`, or `network`, `max_nodes`, `gpu` of an instance."""
    value: str
    """As text; numbers in the field's unit."""
    source: str
    """Where it was read."""
    date: str
    """When it was said, or read where the source has no date."""
    notes: str
    """What to know."""


@functools.cache
def facts(provider: str) -> tuple[SourcedValue, ...]:
    """Everything known of `provider`; empty where nothing is."""
    return tuple(fact for fact in _every_fact() if fact.provider == provider)


@functools.cache
def described() -> tuple[str, ...]:
    """The providers with at least one fact."""
    return tuple(sorted({fact.provider for fact in _every_fact()}))


@functools.cache
def terms(provider: str) -> Terms:
    """Terms of a provider as a whole; each figure's own source and date are named in `source`."""
    facts_by_name = {fact.fact: fact for fact in facts(provider) if fact.instances == ANY_INSTANCE}
    nodes = facts_by_name.get("max_nodes")
    return Terms(
        provider=provider,
        billing_seconds=_fact_number(facts_by_name.get("billing_seconds")),
        minimum_seconds=_fact_number(facts_by_name.get("minimum_seconds")),
        storage_usd_per_gb_month=_fact_number(facts_by_name.get("storage_usd_per_gb_month")),
        stopped_storage_usd_per_gb_month=_fact_number(
            facts_by_name.get("stopped_storage_usd_per_gb_month")
        ),
        egress_usd_per_gb=_fact_number(facts_by_name.get("egress_usd_per_gb")),
        max_nodes=int(nodes.value) if nodes else None,
        source="; ".join(
            f"{name}: {fact.source} ({fact.date})" for name, fact in facts_by_name.items()
        ),
        date=min((fact.date for fact in facts_by_name.values()), default=""),
        notes="; ".join(fact.notes for fact in facts_by_name.values() if fact.notes),
    )


@functools.lru_cache(maxsize=4096)
def fabric(provider: str, instance: str) -> tuple[Network | None, int | None]:
    """Network between nodes of this kind, and how many of them it joins; None where unknown."""
    network, nodes = _best(provider, instance, "network"), _best(provider, instance, "max_nodes")
    return (
        Network.parse(network.value) if network else None,
        int(nodes.value) if nodes else None,
    )


@functools.lru_cache(maxsize=4096)
def gpu_of(provider: str, instance: str) -> str | None:
    """Accelerator id where the instance's name decides the form factor; None where it does not."""
    fact = _best(provider, instance, "gpu")
    return fact.value if fact else None


def _best(provider: str, instance: str, fact: str) -> SourcedValue | None:
    """The fact with the most specific glob that fits."""
    fitting = [
        row
        for row in facts(provider)
        if row.fact == fact
        and row.instances != ANY_INSTANCE
        and fnmatchcase(instance, row.instances)
    ]
    return max(fitting, key=lambda row: len(row.instances), default=None)


def _fact_number(fact: SourcedValue | None) -> float | None:
    return float(fact.value) if fact else None


@functools.cache
def _every_fact() -> tuple[SourcedValue, ...]:
    with PROVIDERS.open(encoding="utf-8", newline="") as file:
        return tuple(SourcedValue(**row) for row in csv.DictReader(file))

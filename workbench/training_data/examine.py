"""A file of training data as a whole: its form, its examples, and what is wrong with it."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from workbench.errors import UsageError
from workbench.training_data.forms import FORMS, example_of, form_of
from workbench.training_data.locate import locate
from workbench.training_data.rows import rows
from workbench.training_data.unused import unused_note
from workbench.training_data.values import (
    DataReport,
    EmptyRowError,
    Example,
    RowError,
    RowResult,
    Source,
)

_LOOKED_AT = 100  # rows that decide the form
_EXAMPLES = 3
_GAPS = "nulls inside of nested columns, with which tables fill what a row lacks"
_MOST_PROBLEMS = 1000
_MOST_HASHES = 2_000_000  # 150 MB of memory


def form_of_source(source: Source) -> tuple[str, tuple[str, ...]]:
    """The form of most of the first rows, and their columns.

    Raises:
        UsageError: no row has a form that is known.
    """
    forms, columns, first = Counter[str](), dict[str, None](), ""
    for row in itertools.islice(rows(source), _LOOKED_AT):
        if row.fields:
            columns |= dict.fromkeys(row.fields)
            if form := form_of(row.fields):
                forms[form] += 1
        first = first or (f"row {row.number}: {row.problem}" if row.problem else "")
    if forms:
        return forms.most_common(1)[0][0], tuple(columns)
    forms_text = "; ".join(FORMS.values())
    if columns:
        names = ", ".join(map(repr, columns))
        raise UsageError(
            f"{source.path}: the columns {names} make no known form. Known: {forms_text}."
        )
    raise UsageError(f"{source.path}: no row can be read ({first or 'it has none'}).")


def read_examples(source: Source, form: str) -> Iterator[RowResult]:
    """Each row as an example, or why it is skipped."""
    for row in rows(source):
        if row.fields is None:
            yield RowResult(row=row.number, problem=row.problem)
            continue
        try:
            example = example_of(row.fields, form)
            unused = (*example.unused, *([_GAPS] if row.has_gaps else []))
            yield RowResult(row=row.number, example=example, unused=unused)
        except RowError as error:
            empty = isinstance(error, EmptyRowError)
            yield RowResult(row=row.number, problem=str(error), is_empty=empty)


def examine(data: str | Path) -> DataReport:
    """Read all of it once, in bounded memory.

    Raises:
        UsageError: nothing in it can be trained on; the message says why.
    """
    source = locate(data)
    form, columns = form_of_source(source)
    counts, first, problems = Counter[str](), list[RowResult](), list[RowResult]()
    seen, duplicates, unused = set[bytes](), 0, Counter[str]()
    for read in read_examples(source, form):
        counts["rows"] += 1
        if read.example is None:
            counts["empty" if read.is_empty else "broken"] += 1
            problems += [read] * (len(problems) < _MOST_PROBLEMS)
            continue
        counts["examples"] += 1
        unused.update(read.unused)
        first += [read] * (len(first) < _EXAMPLES)
        key = _key(read.example)
        duplicates += key in seen
        if len(seen) < _MOST_HASHES:
            seen.add(key)
    if not counts["examples"]:
        problem = problems[0]
        raise UsageError(
            f"{source.path}: no row can be trained on (row {problem.row}: {problem.problem})."
        )
    return DataReport(
        path=source.path,
        kind=source.kind,
        form=form,
        columns=columns,
        rows=counts["rows"],
        examples=counts["examples"],
        first=tuple(first),
        duplicates=duplicates if counts["examples"] <= _MOST_HASHES else None,
        empty=counts["empty"],
        broken=counts["broken"],
        problems=tuple(problems),
        notes=(*source.notes, *unused_note(unused)),
    )


def _key(example: Example) -> bytes:
    """Of all that is trained on."""
    turns = (*example.turns, *example.rejected)
    messages = [(turn.message(), turn.learned) for turn in turns]
    document = json.dumps((example.text, example.tools, messages), default=str)
    return hashlib.blake2b(document.encode(), digest_size=12).digest()

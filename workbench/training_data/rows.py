"""Rows of a file, one after the other, in bounded memory however large the file or a line is."""

from __future__ import annotations

import contextlib
import csv
import importlib
import io
import itertools
import json
import re
import shlex
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from workbench.errors import UsageError, pip_install
from workbench.training_data.values import Row, Source

MOST_ROW_BYTES = 16 << 20
"""A longer row is skipped, and told: no context holds four million tokens."""
_BLOCK = 1 << 20
_SKIPPED_BYTES = 4 << 20  # at once, of a longer line
_TOO_LONG = f"longer than {MOST_ROW_BYTES >> 20} MiB"
_DELIMITER = re.compile(rb"sep=([\x20-\x7e\t])\r?\n\Z", re.IGNORECASE)
_LONG_ELEMENT = object()  # of a JSON list


def rows(source: Source) -> Iterator[Row]:
    """All rows in order; of several files the numbers continue.

    Raises:
        UsageError: a file as a whole cannot be read.
    """
    readers: Mapping[str, Callable[[Path], Iterator[Row]]] = {
        "jsonl": _jsonl,
        "json": _json,
        "csv": _csv,
        "text": _text,
        "parquet": _parquet,
        "arrow": _arrow,
    }
    before = 0
    for path in source.files:
        last = 0
        try:
            for row in readers[source.kind](path):
                last = row.number
                yield replace(row, number=before + last)
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror or error}.") from error
        before += last


def _lines(file: BinaryIO, quotes: list[int] | None = None) -> Iterator[tuple[int, bytes | None]]:
    """Number and bytes of each line; None = it is too long, and `quotes` has how many are in it."""
    for number in itertools.count(1):
        line = file.readline(MOST_ROW_BYTES + 1)
        if not line:
            return
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if len(line) <= MOST_ROW_BYTES:
            yield number, line
            continue
        count = line.count(b'"')
        if not line.endswith(b"\n"):
            count += _skip_line(file)
        if quotes is not None:
            quotes[0] = count
        yield number, None


def _skip_line(file: BinaryIO) -> int:
    """To the next line; in large pieces, since the rest of this one may be gigabytes.

    Returns how many quotes were in it.
    """
    quotes = 0
    while piece := file.read(_SKIPPED_BYTES):
        end = piece.find(b"\n")
        if end >= 0:
            file.seek(end + 1 - len(piece), io.SEEK_CUR)
            return quotes + piece.count(b'"', 0, end)
        quotes += piece.count(b'"')
    return quotes


def _jsonl(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, line in _lines(file):
            if line is None:
                yield Row(number=number, problem=_TOO_LONG)
            elif line.strip():
                yield _object(number, line)
            elif file.peek(1):  # pyright: ignore[reportAttributeAccessIssue] - buffered
                yield Row(number=number, fields={})


def _object(number: int, line: bytes) -> Row:
    """One JSON object."""
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return Row(number=number, problem=_not_utf8(line[error.start], error.start))
    except json.JSONDecodeError as error:
        return Row(number=number, problem=f"not valid JSON: {_error_text(error)}")
    except RecursionError:
        return Row(number=number, problem="JSON nested too deeply")
    except ValueError as error:  # a number of thousands of digits
        return Row(number=number, problem=f"not valid JSON: {error}")
    return _row(number, value)


def _row(number: int, value: object) -> Row:
    if not isinstance(value, dict):
        kinds = {"list": "a list", "str": "a text", "NoneType": "null"}
        kind = kinds.get(type(value).__name__, "a number")
        return Row(number=number, problem=f"{kind}, not an object with named columns")
    return Row(number=number, fields=cast("dict[str, Any]", value))


def _error_text(error: json.JSONDecodeError) -> str:
    return f"{error.msg[:1].lower()}{error.msg[1:]} at character {error.pos + 1}"


def _not_utf8(byte: int, at: int) -> str:
    return f"not UTF-8 (byte 0x{byte:02x} at {at + 1}); save the file as UTF-8"


def _json(path: Path) -> Iterator[Row]:
    """The elements of one list. Behind a broken one nothing can be found again."""
    with path.open("r", encoding="utf-8-sig", errors="surrogateescape") as file:
        text = file.read(_BLOCK)
        at = text.index("[") + 1
        for number in itertools.count(1):
            text, at, value, problem = _element(file, text, at)
            if problem:
                yield Row(number=number, problem=f"{problem}; nothing behind it can be read")
            elif value is _LONG_ELEMENT:
                yield Row(number=number, problem=_TOO_LONG)
            elif value is not None:
                yield _row(number, value)
            if problem or value is None:
                return


def _element(file: TextIO, text: str, at: int) -> tuple[str, int, object, str]:
    """What is held of the file, where the next element begins, this one, or why it cannot be read.

    Neither: the list has ended. A null is given as false, which is as little a row.
    """
    while True:
        at = next(
            (here for here in range(at, len(text)) if text[here] not in " \t\r\n,"), len(text)
        )
        if text[at : at + 1] == "]":
            return text, at, None, ""
        problem = ""
        try:
            value, end = json.JSONDecoder().raw_decode(text, at)
            if end < len(text) or text[end - 1] == "}":
                if end - at > MOST_ROW_BYTES:
                    return text, end, _LONG_ELEMENT, ""
                return text, end, value if value is not None else False, ""
        except json.JSONDecodeError as error:
            problem = f"not valid JSON: {error.msg[:1].lower()}{error.msg[1:]}"
        except (RecursionError, ValueError):
            problem = "JSON nested too deeply, or a number too long"
        remaining = len(text) - at
        more = "" if remaining > MOST_ROW_BYTES else file.read(max(_BLOCK, remaining))
        if not more:
            is_over = not text[at:].strip()
            problem = _TOO_LONG if remaining > MOST_ROW_BYTES else problem
            return (
                text,
                at,
                None,
                "the list has no end: the file is cut off" if is_over else problem,
            )
        text, at = text[at:] + more, 0


def _csv(path: Path) -> Iterator[Row]:
    """Rows below a header; the delimiter is what the header has most of, or Excel's ``sep=`` says.

    Where blanks follow the header's delimiters they belong to no name, and to no value below.
    """
    with path.open("rb") as file:
        lines = (line for _, line in _lines(file))
        first = next(lines, b"")
        says = _DELIMITER.match(first or b"")
        header = next(lines, b"") if says else first
        if header is None:
            raise UsageError(f"The header of {path} is {_TOO_LONG}. Give a CSV with lines.")
        if b"\r" in header.strip():
            raise UsageError(
                f"The lines of {path} end in a carriage return alone. Convert them: tr '\\r' '\\n' "
                f"< {shlex.quote(path.name)} > new.csv"
            )
        delimiter = max(",\t;|", key=lambda character: header.count(character.encode()))
        delimiter = says[1].decode() if says else delimiter
        has_blanks = f"{delimiter} ".encode() in header
        file.seek(0)
        skipped = set[int]()
        longest = csv.field_size_limit(MOST_ROW_BYTES)
        try:
            text = _csv_lines(file, skipped)
            before = len([*itertools.islice(text, 1)]) if says else 0
            reader = csv.reader(text, delimiter=delimiter, skipinitialspace=has_blanks)
            yield from _records(reader, skipped, before)
        finally:
            csv.field_size_limit(longest)


def _csv_lines(file: BinaryIO, skipped: set[int]) -> Iterator[str]:
    """Lines as text. One that is too long is noted, and only its quotes are kept.

    An odd number of them begins or ends a field of several lines, so what follows is read right.
    """
    for number, line in _lines(file, quotes := [0]):
        if line is None:
            skipped.add(number)
            yield '"' * (quotes[0] % 2) + "\n"
        else:
            yield line.decode("utf-8", "surrogateescape")


def _records(reader: Any, skipped: Collection[int], before: int) -> Iterator[Row]:
    """Rows of a CSV; `skipped` has the numbers of lines that were too long, once they are read.

    `before` lines of the file the reader has not seen.
    """
    try:
        names = [name.strip() for name in next(reader, list[str]())]
    except csv.Error as error:
        raise UsageError(
            f"The header of the CSV cannot be read ({error}). Write it again."
        ) from error
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"Two columns of the CSV are called {twice!r}. Rename one in its header.")
    while True:
        number = before + reader.line_num + 1
        try:
            values: list[str] = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield Row(number=number, problem=f"not valid CSV: {error}")
            continue
        if any(number <= line <= before + reader.line_num for line in skipped):
            yield Row(number=number, problem=_TOO_LONG)
        elif not values:
            yield Row(number=number, fields={})
        elif len(values) != len(names):
            problem = f"{len(values)} values, but the header has {len(names)} columns"
            yield Row(number=number, problem=problem)
        else:
            yield Row(number=number, fields=dict(zip(names, values, strict=True)))


def _text(path: Path) -> Iterator[Row]:
    """Blocks between blank lines; one that is too long is cut at a line."""
    with path.open("rb") as file:
        begin, block, size = 1, list[str](), 0
        for number, line in _lines(file):
            text = "" if line is None else line.decode("utf-8", "surrogateescape")
            if line is None:
                yield Row(number=number, problem=_TOO_LONG)
            if block and (not text.strip() or size + len(text) > MOST_ROW_BYTES):
                yield Row(number=begin, fields={"text": "".join(block).strip("\r\n")})
                block, size = [], 0
            if text.strip():
                begin = begin if block else number
                block.append(text)
                size += len(text)
        if block:
            yield Row(number=begin, fields={"text": "".join(block).strip("\r\n")})


def _parquet(path: Path) -> Iterator[Row]:
    with _arrow_errors(path):
        table = _pyarrow("pyarrow.parquet").ParquetFile(path)
        yield from _batches(table.iter_batches(batch_size=64))


def _arrow(path: Path) -> Iterator[Row]:
    with _arrow_errors(path):
        pyarrow = _pyarrow("pyarrow")
        with pyarrow.memory_map(str(path)) as file:
            yield from _batches(_pyarrow("pyarrow.ipc").open_stream(file))


def _batches(batches: Any) -> Iterator[Row]:
    number = 0
    for batch in batches:
        for fields in _fields_of(batch):
            number += 1
            if isinstance(fields, str):
                yield Row(number=number, problem=fields)
                continue
            cleaned = {name: _without_nulls(value) for name, value in fields.items()}
            gaps = any(_has_gaps(fields[name], value) for name, value in cleaned.items())
            yield Row(number=number, fields=cleaned, has_gaps=gaps)


def _fields_of(batch: Any) -> Iterator[dict[str, Any] | str]:
    """Each row's columns, or why it cannot be read: one bad value is not the end of the file."""
    try:
        yield from batch.to_pylist()
    except (UnicodeDecodeError, OverflowError):
        for at in range(batch.num_rows):
            yield _fields_at(batch, at)


def _fields_at(batch: Any, at: int) -> dict[str, Any] | str:
    fields: dict[str, Any] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            fields[name] = column[at].as_py()
        except UnicodeDecodeError as error:
            byte = _not_utf8(error.object[error.start], error.start)
            return f"column {name!r} is {byte}"
        except OverflowError:  # a date that Python cannot say: no text that is trained on
            fields[name] = f"{column.type} out of range"
    return fields


def _without_nulls(value: Any) -> Any:
    """Objects inside of a column without their nulls: all rows of a table have the same keys."""
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value).items()
        return {key: _without_nulls(item) for key, item in pairs if item is not None}
    return list(map(_without_nulls, value)) if isinstance(value, list) else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _has_gaps(value: Any, cleaned: Any, depth: int = 0) -> bool:
    """Whether nulls are missing below the keys of a message, such as in a tool's arguments."""
    if isinstance(value, list):
        pairs = zip(cast("list[Any]", value), cleaned, strict=True)
        return any(_has_gaps(item, counterpart, depth) for item, counterpart in pairs)
    if not isinstance(value, dict):
        return False
    named = cast("dict[str, Any]", value)
    missing = depth > 0 and len(cleaned) < len(named)
    return missing or any(_has_gaps(named[key], cleaned[key], depth + 1) for key in cleaned)


def _pyarrow(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(
            f"Parquet and Arrow files need pyarrow: {pip_install('pyarrow')}"
        ) from error


@contextlib.contextmanager
def _arrow_errors(path: Path) -> Generator[None]:
    """Turn pyarrow's own exceptions into a sentence; what happens to a row is the caller's."""
    try:
        yield
    except (UsageError, OSError, GeneratorExit):
        raise
    except Exception as error:
        if not type(error).__module__.startswith("pyarrow"):
            raise
        raise UsageError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error

"""Which kind of file training data is in, by its content first and its name second."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from pathlib import Path

from workbench.errors import UsageError
from workbench.training_data.values import Source

KINDS = "JSONL, JSON, CSV, Parquet, plain text, or a folder of `datasets`"
_HEAD_BYTES = 1 << 16
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SUFFIXES = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "json"),
    **dict.fromkeys((".csv", ".tsv"), "csv"),
    **dict.fromkeys((".txt", ".md", ".text"), "text"),
    ".parquet": "parquet",
}
_DESCRIPTIONS = {"dataset_info.json", "dataset_infos.json", "state.json"}
_TRAIN = re.compile(r"(?<![a-z])train|Train|TRAIN")  # not that of constraints
_SHARD = re.compile(r"[-_.]?\d+([-_]of[-_]\d+)?$")
_NAMED = 5
_PACKED = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2"}
_PACKED_SUFFIXES = {".gz", ".zip", ".zst", ".bz2", ".xz", ".lz4"}
_WIDE = {b"\xff\xfe\x00\x00": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


def locate(data: str | Path) -> Source:
    """The files of training data and how they are stored.

    Raises:
        UsageError: there is nothing that can be read; the message says what to do.
    """
    path = Path(data).expanduser()
    if path.is_dir():
        return _folder(path)
    if not path.exists():
        raise UsageError(_missing(str(data), path))
    if not path.is_file():
        raise UsageError(f"{path} is neither a file nor a folder. Give {KINDS}.")
    return Source(path=path, kind=_kind(path), files=(path,))


def _missing(source: str, path: Path) -> str:
    if _HUB_NAME.fullmatch(source) and not path.suffix and not path.parent.is_dir():
        return (
            f"{source} is not here. If it is a data set of the hub, fetch it first: hf download "
            f"--repo-type dataset {source} --local-dir data (a gated one needs `hf auth login`), "
            "then give that folder."
        )
    names = [entry.name for entry in path.parent.glob("*")] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, names, n=2)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return f"No file {path}.{hint} Give {KINDS}."


def _folder(path: Path) -> Source:
    """A folder that `datasets` saved, or one of data files of one kind."""
    notes: list[str] = []
    if (path / "dataset_dict.json").is_file():
        splits = sorted(entry.name for entry in path.iterdir() if (entry / "state.json").is_file())
        if not splits:
            raise UsageError(f"{path} names splits, but their folders are missing. Save it again.")
        split = "train" if "train" in splits else splits[0]
        notes.append(f"Of the splits {', '.join(splits)} the split {split} is read.")
        path = path / split
    # Beside them `datasets` keeps results of map, filter and shuffle: no data of their own.
    arrows = sorted(file for file in path.glob("*.arrow") if not file.name.startswith("cache-"))
    if arrows:
        return Source(path=path, kind="arrow", files=tuple(arrows), notes=tuple(notes))
    entries = [entry for entry in sorted(path.rglob("*")) if not _is_hidden(entry, path)]
    files = [entry for entry in entries if _is_data(entry)]
    train = [file for file in files if _TRAIN.search(str(file.relative_to(path)))]
    chosen = train or files
    if train and len(train) < len(files):
        notes.append(f"Of {len(files)} files the {len(train)} with train in their names are read.")
    packed = [str(entry.relative_to(path)) for entry in entries if _is_packed(entry)]
    if packed:
        more = f" and {len(packed) - _NAMED} more" if len(packed) > _NAMED else ""
        named = f"{', '.join(packed[:_NAMED])}{more}"
        if not chosen:
            raise UsageError(f"{path} has only compressed data ({named}). Unpack it first.")
        notes.append(f"Compressed, so not read: {named}. Unpack to read.")
    names = sorted({_SHARD.sub("", file.stem) for file in chosen})
    if len(names) > 1:
        notes.append(f"Read together: {', '.join(names[:_NAMED])}{', …' * (len(names) > _NAMED)}.")
    kinds = {_kind(path) for path in chosen}
    if not chosen:
        raise UsageError(f"{path} has no data files. Give {KINDS}.")
    if len(kinds) > 1:
        raise UsageError(
            f"{path} has files of several kinds ({', '.join(sorted(kinds))}). Give one file, or a "
            "folder with one kind."
        )
    return Source(path=path, kind=kinds.pop(), files=tuple(chosen), notes=tuple(notes))


def _is_hidden(entry: Path, folder: Path) -> bool:
    """Whether it, or a folder on the way to it, is what editors and caches keep out of sight."""
    return any(part.startswith(".") for part in entry.relative_to(folder).parts)


def _is_packed(file: Path) -> bool:
    """Whether it is data that has to be unpacked first, by its name."""
    inner = Path(file.stem).suffix.lower()
    return file.suffix.lower() in _PACKED_SUFFIXES and inner in _SUFFIXES and file.is_file()


def _is_data(file: Path) -> bool:
    """Not the descriptions that lie beside data."""
    about = file.name.startswith("README") or file.name in _DESCRIPTIONS
    return file.suffix.lower() in _SUFFIXES and not about and file.is_file()


def _kind(path: Path) -> str:
    """How one file is stored."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text:
        raise UsageError(f"{path} is empty. Give a file with one example per row.")
    if head.startswith(b"PAR1"):
        return "parquet"
    _check_text(path, head)
    named = _SUFFIXES.get(path.suffix.lower())
    if named == "parquet":
        raise UsageError(f"{path} is called Parquet, but its content is not. Write it again.")
    if named in {"csv", "text"}:
        return named
    if text[:1] == b"[" and _is_list(text):
        return "json"
    if text[:1] == b"{" and path.suffix.lower() == ".json" and not _is_object(text):
        raise UsageError(
            f"{path} is one JSON object, not rows. Put the rows in a list, or one object per line."
        )
    if named == "json" or text[:1] == b"{":
        return "jsonl"
    raise UsageError(f"{path}: the kind of file is not known. Give {KINDS}, with its usual suffix.")


def _check_text(path: Path, head: bytes) -> None:
    """Refuse what is not text of UTF-8."""
    if packed := _starting(head, _PACKED):
        raise UsageError(f"{path} is compressed ({packed}). Unpack it, then give the file inside.")
    if wide := _starting(head, _WIDE):
        raise UsageError(
            f"{path} is {wide}, not UTF-8. Convert it: iconv -f {wide} -t UTF-8 {path.name} > new"
        )
    if b"\0" in head:
        raise UsageError(f"{path} is a binary file. Give {KINDS}.")


def _starting(head: bytes, marks: dict[bytes, str]) -> str:
    return next((name for mark, name in marks.items() if head.startswith(mark)), "")


def _is_list(text: bytes) -> bool:
    """Whether it begins a JSON list of objects, over one line or many."""
    return text[1:].lstrip()[:1] in {b"{", b"]", b""}


def _is_object(text: bytes) -> bool:
    """Whether the first line is a JSON value by itself, or too long to know."""
    line, newline, _ = text.partition(b"\n")
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return not newline
    return bool(newline) or len(text) >= _HEAD_BYTES or _is_row(json.loads(line))


def _is_row(value: object) -> bool:
    """One object on one line: a row, unless it is a table of columns."""
    return isinstance(value, dict) and not _all_lists(value.values())  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


def _all_lists(values: Iterable[object]) -> bool:
    listed = list(values)
    return len(listed) > 1 and all(isinstance(item, list) for item in listed)

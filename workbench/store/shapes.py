"""Holds a run's documents against the schema: a value that cannot be there is taken as unknown.

Whoever can write to a store can write anything into it. Readers of a run must not fail, hang or
show a foreign text as a command to the terminal because of that, so a known key whose value has
another type, is no finite number, or lies outside its range is left out; unknown keys are kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, Literal, TypedDict, Union, cast, get_args, get_origin, get_type_hints

from workbench.store import node_schema, row_schema, schema
from workbench.store.printable import is_printable, printable
from workbench.store.rank_records import RankEnd, RankStart
from workbench.store.run_record import PredictedDoc, RunRecord

MAX_RANKS = 16_384  # a rank costs its readers a file each
_MAX_INTEGER = 2**63
_MAX_NUMBER = 1e300  # sums of a few thousand of these are finite
LAST_SECOND = 253_402_300_799.0  # of the year 9999, as far as calendars go
_DEEPEST = 100  # levels of what the schema leaves open
_DROPPED = object()
_NUMBERS = (int, float)
_RANK = re.compile(r"[0-9]{1,5}")
_COLUMN = list[float | None]


class _Series(TypedDict, total=False):
    series: dict[str, _COLUMN]


class _Host(_Series, total=False):
    name: str | None
    cores: int | None
    memory_total_bytes: float | None


class _DeviceId(TypedDict):
    id: str


class _Device(_DeviceId, _Host, total=False):
    power_limit_w: float | None


class _RankId(TypedDict):
    rank: int


class _Rank(_RankId, total=False):
    pid: int | None
    step: int
    loss: float | None
    late_seconds: float | None
    peak_memory_bytes: float | None
    rss_bytes: float | None
    alive: bool | None
    ended: str | None
    log_tail: list[str]
    phase: str | None
    process_state: str | None


class _FindingKind(TypedDict):
    kind: str


class _Finding(_FindingKind, total=False):
    evidence: str
    cause: str
    next: str
    confidence: float
    severity: str
    rank: int | None
    node: int | None
    gpu: int | None
    step: int | None
    seen_at: float | None
    cleared_at: float | None
    replaced_by: str | None


class _Checkpoint(TypedDict, total=False):
    step: int | None
    path: str
    name: str
    bytes: int | None
    saved_at: float | None
    kind: str | None
    sealed: bool | None
    problem: str | None


class _RankTimes(_RankId, total=False):
    entered: _COLUMN
    ended: _COLUMN
    data: _COLUMN


class _LastRank(_RankId, total=False):
    entered: float | None
    seconds: float | None


class _Timeline(TypedDict, total=False):
    step: _COLUMN
    last: list[_LastRank]
    latest: _LastRank | None
    ranks: list[_RankTimes]
    ranks_hidden: int


class _Findings(TypedDict, total=False):
    findings: list[_Finding]


# What the schema leaves open ("Any"), as narrow as its readers need it.
_NARROWER: dict[str, dict[str, Any]] = {
    "exit.json": {"finding": _Finding | None},
    "view.json": {
        "predicted": PredictedDoc | None,
        "host": _Host,
        "devices": list[_Device],
        "ranks": list[_Rank],
        "findings": list[_Finding],
        "attempts": list[schema.AttemptLine],
        "checkpoints": list[_Checkpoint],
        "timeline": _Timeline,
    },
}
_DOCUMENTS: dict[str, Any] = {
    "run.json": RunRecord,
    "state.json": schema.StateDoc,
    "exit.json": schema.ExitDoc,
    "labels.json": schema.LabelsDoc,
    "view.json": schema.ViewDoc,
    "findings.json": _Findings,
    "comparison.json": schema.ComparisonDoc,
    "rank.start.json": RankStart,
    "rank.end.json": RankEnd,
    "node.json": node_schema.NodeDoc,
    "order.json": node_schema.NodeOrder,
    "row.json": row_schema.RowDoc,
}


def fit(file_name: str, document: dict[str, Any]) -> dict[str, Any]:
    """`document`, read from a file of that name, without the values that cannot be there.

    >>> fit("exit.json", {"exit_code": "1", "ended_at": 5, "more": [1]})
    {'ended_at': 5, 'more': [1]}
    """
    hints = _hints(re.sub(r"^(rank|node)-\d+\.", r"\1.", file_name))
    return document if hints is None else _fit_keys(document, hints)


def fit_as(kind: type, document: dict[str, Any]) -> dict[str, Any]:
    """The fields of the dataclass or TypedDict `kind` in `document` whose values can be there.

    >>> from workbench.store.schema import ProcessDoc
    >>> fit_as(ProcessDoc, {"pid": 5, "start_ticks": float("inf"), "more": [1]})
    {'pid': 5}
    """
    hints = _hints_of(kind)
    return {name: value for name, value in _fit_keys(document, hints).items() if name in hints}


def line_fits(document: dict[str, Any]) -> bool:
    """Whether a line's numbers can be reckoned with: no integer that no float can hold."""
    return all(
        type(value) is not int or -_MAX_INTEGER <= value < _MAX_INTEGER
        for value in document.values()
    )


@cache
def _hints_of(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


@cache
def _hints(name: str) -> dict[str, Any] | None:
    document = _DOCUMENTS.get(name)
    if document is None:
        return None
    return get_type_hints(document) | _NARROWER.get(name, {})


@cache
def _typed_dict(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    return get_type_hints(kind), cast("frozenset[str]", kind.__required_keys__)


def _fit_keys(document: dict[str, Any], hints: dict[str, Any]) -> dict[str, Any]:
    fitted: dict[str, Any] = {}
    for key, value in document.items():
        fitted_value = _fitter(hints[key])(value) if key in hints else value
        if fitted_value is not _DROPPED and (key not in hints or _in_range(key, fitted_value)):
            fitted[key] = fitted_value
    return fitted


def _in_range(key: str, value: Any) -> bool:
    """What the type alone does not say."""
    if key in {"processes", "nodes"}:
        return value is None or 1 <= value <= MAX_RANKS
    if key == "rank":
        return value is None or 0 <= value < MAX_RANKS
    if key == "ranks" and isinstance(value, dict):  # of state.json and node-N.json: by rank
        return all(map(_RANK.fullmatch, cast("dict[str, Any]", value)))
    if (key.endswith("_at") or key in {"time", "heartbeat"}) and type(value) in _NUMBERS:
        return 0 <= value <= LAST_SECOND
    return True


@cache
def _fitter(hint: Any) -> Callable[[Any], Any]:
    """What does it for that hint: looked up once, for a list of runs asks it a million times."""
    origin = get_origin(hint)
    if origin in {Union, UnionType}:
        return partial(_first_fit, tuple(_fitter(argument) for argument in get_args(hint)))
    if hint == _COLUMN:
        fitter = _fitted_column
    elif origin is list:
        fitter = partial(_fitted_list, get_args(hint)[0])
    elif origin is dict:
        fitter = partial(_fitted_mapping, get_args(hint)[1])
    elif isinstance(hint, type) and issubclass(hint, dict):
        fitter = partial(_fitted_typed, hint)
    else:
        fitter = partial(_plain, str if origin is Literal else hint)
    return _with_printable_texts if hint is Any else fitter


def _with_printable_texts(value: Any, depth: int = 0) -> Any:
    """What the schema leaves open: its names and texts command no terminal either."""
    if isinstance(value, str):
        return _printable(value)
    if not isinstance(value, dict | list):
        return value
    if depth == _DEEPEST:  # no reader looks there
        return None
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value).items()
        return {_printable(key): _with_printable_texts(item, depth + 1) for key, item in members}
    entries = cast("list[Any]", value)
    if all(map(_is_reading, entries)):
        return entries
    return [_with_printable_texts(entry, depth + 1) for entry in entries]


def _printable(text: str) -> str:
    return text if is_printable(text) else printable(text, max_line=None)


def _first_fit(fitters: Sequence[Callable[[Any], Any]], value: Any) -> Any:
    for fitter in fitters:
        fitted = fitter(value)
        if fitted is not _DROPPED:
            return fitted
    return _DROPPED


def _fitted_column(value: Any) -> Any:
    """A number that no one can reckon with is unknown: one loss of 1e300 costs no curve."""
    if not isinstance(value, list):
        return _DROPPED
    entries = cast("list[Any]", value)
    if all(map(_is_reading, entries)):
        return entries
    if any(entry is not None and type(entry) not in _NUMBERS for entry in entries):
        return _DROPPED
    return [entry if _is_reading(entry) else None for entry in entries]


def _is_reading(value: Any) -> bool:
    return value is None or (type(value) in _NUMBERS and -_MAX_NUMBER < value < _MAX_NUMBER)


def _fitted_list(hint: Any, value: Any) -> Any:
    """All entries must fit; of a list of documents, the ones that do are kept."""
    if not isinstance(value, list):
        return _DROPPED
    entries = list(map(_fitter(hint), cast("list[Any]", value)))
    if any(entry is _DROPPED for entry in entries):
        documents = isinstance(hint, type) and issubclass(hint, dict)
        return [entry for entry in entries if entry is not _DROPPED] if documents else _DROPPED
    return entries


def _fitted_mapping(hint: Any, value: Any) -> Any:
    if not isinstance(value, dict):
        return _DROPPED
    fitter = _fitter(hint)
    members = cast("dict[str, Any]", value).items()
    entries = {_printable(key): fitter(item) for key, item in members}
    return {key: value for key, value in entries.items() if value is not _DROPPED}


def _fitted_typed(kind: Any, value: Any) -> Any:
    """A document within a document: dropped whole when a key is missing that it must have."""
    if not isinstance(value, dict):
        return _DROPPED
    hints, required = _typed_dict(kind)
    fitted = _fit_keys(cast("dict[str, Any]", value), hints)
    return fitted if required <= fitted.keys() else _DROPPED


def _plain(kind: Any, value: Any) -> Any:
    if kind is NoneType:
        return None if value is None else _DROPPED
    if kind is str:
        return _printable(value) if isinstance(value, str) else _DROPPED
    if kind is bool:
        return value if isinstance(value, bool) else _DROPPED
    if kind is int:
        fits = type(value) is int and -_MAX_INTEGER <= value < _MAX_INTEGER
        return value if fits else _DROPPED
    fits = type(value) in _NUMBERS and -_MAX_NUMBER < value < _MAX_NUMBER
    return value if fits else _DROPPED

"""What changed between two JSON values, small enough to send each second.

A change is one of these, and ``static/changes.js`` applies it:

- ``{"is": VALUE}``: another value;
- ``{"in": {KEY: CHANGE}, "gone": [KEY]}``: the same object, with other members;
- ``{"at": {INDEX: CHANGE}}``: an array of as many objects, some of them changed;
- ``{"from": A, "keep": N, "add": [VALUE]}``: an array: ``old[A : A + N]``, then what is new; A is
  0 where it is not there. It covers what grows, what slides, and a last row that is rewritten.
"""

from __future__ import annotations

from typing import Any, Final, cast

Change = dict[str, Any]
NOTHING: Final[Change] = {}
"""The two values are the same."""
_TRIED = 40  # places where an array may continue after its front was dropped


def changes(old: Any, new: Any) -> Change:
    """What makes `new` of `old`; both are JSON, `NOTHING` where they are equal.

    >>> changes({"step": [1, 2], "name": "a"}, {"step": [1, 2, 3], "name": "a"})
    {'in': {'step': {'keep': 2, 'add': [3]}}}
    """
    if isinstance(old, dict) and isinstance(new, dict):
        return _of_objects(cast("dict[str, Any]", old), cast("dict[str, Any]", new))
    if isinstance(old, list) and isinstance(new, list):
        return _of_arrays(cast("list[Any]", old), cast("list[Any]", new))
    same = bool(old == new) and isinstance(old, bool) == isinstance(new, bool)
    return NOTHING if same else {"is": new}


def _of_objects(old: dict[str, Any], new: dict[str, Any]) -> Change:
    changed = {
        key: changes(old[key], value) if key in old else {"is": value} for key, value in new.items()
    }
    inside = {key: change for key, change in changed.items() if change}
    gone = [key for key in old if key not in new]
    return {**({"in": inside} if inside else {}), **({"gone": gone} if gone else {})}


def _of_arrays(old: list[Any], new: list[Any]) -> Change:
    if old == new:
        return NOTHING
    if len(old) == len(new) and all(type(item) is dict for item in (*old, *new)):
        pairs = enumerate(zip(old, new, strict=True))
        changed = {str(at): changes(was, now) for at, (was, now) in pairs}
        return {"at": {at: change for at, change in changed.items() if change}}
    start, length = _longest(old, new)
    return {**({"from": start} if start else {}), "keep": length, "add": new[length:]}


def _longest(old: list[Any], new: list[Any]) -> tuple[int, int]:
    """Where in `old` the longest beginning of `new` stands, and its length."""
    best = (0, _common(old, new, 0))
    if not new or best[1] >= len(old) - 1:
        return best
    places = [at for at, value in enumerate(old) if at and value == new[0]][:_TRIED]
    return max([best, *((at, _common(old, new, at)) for at in places)], key=lambda pair: pair[1])


def _common(old: list[Any], new: list[Any], start: int) -> int:
    """How many values of `old` from `start` on are those at the beginning of `new`."""
    length = min(len(old) - start, len(new))
    if old[start : start + length] == new[:length]:
        return length
    return next(at for at in range(length) if old[start + at] != new[at])

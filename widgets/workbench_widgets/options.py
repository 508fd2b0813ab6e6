"""Keyword arguments that a face does not have are refused in words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping


def refuse_unknown(face: str, unknown: Mapping[str, object], allowed: Iterable[str]) -> None:
    """Raise when there are unknown keyword arguments.

    Raises:
        TypeError: names the unknown argument, the allowed ones and the nearest of them.
    """
    if not unknown:
        return
    given = next(iter(unknown))
    options = sorted(allowed)
    near = difflib.get_close_matches(given, options, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise TypeError(f"{face} has no option {given!r}; its options are {', '.join(options)}.{hint}")

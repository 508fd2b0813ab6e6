"""Keyword arguments that a face does not have are refused in words."""

from __future__ import annotations

import difflib
import inspect
import shlex
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from workbench.describe.other_names import meant
from workbench.launching.prepare.targets import as_script_words

_MOST_NAMED = 20  # options beside a near one; the list of a calculator's fifty hides it


def refuse_unknown(face: str, names: Iterable[str], allowed: Collection[str]) -> None:
    """Raise when one of the argument `names` is not `allowed`.

    Raises:
        TypeError: names the unknown argument and the nearest allowed one; of few, or without a
            near one, all that are allowed.
    """
    unknown = next((name for name in names if name not in allowed), None)
    if unknown is None:
        return
    options, found = sorted(allowed), meant(unknown, allowed)
    near = [found.name] if found else difflib.get_close_matches(unknown, options, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    named = near and len(options) > _MOST_NAMED
    listed = "" if named else f"; its options are {', '.join(options)}"
    raise TypeError(f"{face} has no option {unknown!r}{listed}.{hint}")


def as_typed(arguments: str | Sequence[Any] | None) -> str:
    """A script's arguments as typed in a shell: a text as it is, a list as its quoted words.

    Raises:
        UsageError: it is neither.
    """
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    return shlex.join(as_script_words(arguments))


def refuse_extra(face: type, extra: Iterable[str]) -> None:
    """`refuse_unknown` of what the constructor of `face` takes by no name of its own."""
    names = list(inspect.signature(face.__init__).parameters)[1:-1]  # without self and the extra
    refuse_unknown(face.__name__, extra, [name for name in names if not name.startswith("_")])

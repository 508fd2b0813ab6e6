"""Keeps secrets out of a launch's record: by the name they go under, by shape, and by value."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from workbench.store.secrets import HIDDEN, hide, is_secret, is_secret_name, values_of

__all__ = [
    "HIDDEN",
    "is_secret_name",
    "redact_arguments",
    "redact_environment",
    "redact_text",
    "secret_values",
]

_COMMIT = {"revision", "commit", "sha", "rev", "hash", "checksum"}
# A named value inside an argument: {'token': '…'}, api_key=…; not what follows the : of an address.
_NAMED = re.compile(
    r"([A-Za-z][\w.-]*)(\\?[\"']?\s*[:=]\s*)(?!//)"
    r"(?:(\\?[\"'])(.*?)\3|((?![\"'\\{\[])[^\s\"',;&}\])]+))"
)
_SHORT_OPTION = "-p"  # of mysql, sshpass and their like; a port or a count is none
_SCHEMES = {"basic", "bearer", "token", "digest", "negotiate", "apikey"}


def redact_text(text: str) -> str:
    """Hide what has the shape of a known kind of key, and the secrets of this environment."""
    return hide(text, values_of(os.environ))


def redact_arguments(arguments: Iterable[str]) -> list[str]:
    """Hide the values of secret options and the secrets inside other arguments.

    >>> redact_arguments(["--token", "X", "--lr=1", "wandb.api_key=Y", "--pad_token", "<pad>"])
    ['--token', '[redacted]', '--lr=1', 'wandb.api_key=[redacted]', '--pad_token', '<pad>']
    """
    known = values_of(os.environ)
    result: list[str] = []
    before = ""
    for argument in arguments:
        if _is_secret_value(before, argument):
            result.append(HIDDEN)
        elif _COMMIT & set(re.split(r"[^a-z]+", (before + argument.partition("=")[0]).lower())):
            result.append(argument)
        else:
            result.append(_redact_inside(argument, known))
        before = argument if argument.startswith("-") and "=" not in argument else ""
    return result


def secret_values(arguments: Iterable[str]) -> list[str]:
    """The arguments that `redact_arguments` hides, and what it hides inside others."""
    values: list[str] = []
    arguments = list(arguments)
    for plain, redacted in zip(arguments, redact_arguments(arguments), strict=True):
        if redacted == HIDDEN:
            values.append(plain)
        elif plain != redacted:
            kept = [re.escape(part) for part in redacted.split(HIDDEN)]
            match = re.fullmatch("(.+?)".join(kept), plain, re.DOTALL)
            values += match.groups() if match is not None else ()
    return values


def _is_secret_value(option: str, value: str) -> bool:
    """Whether `value`, which follows `option`, is the option's secret."""
    if not option or value.startswith("--"):
        return False
    if option == _SHORT_OPTION:
        return not re.fullmatch(r"[\d.:,-]+|[a-z]", value) and not _exists(value)
    return is_secret(option, value)


def _exists(value: str) -> bool:
    try:
        return Path(value).exists()
    except (OSError, ValueError):
        return False


def _redact_inside(argument: str, known: frozenset[str]) -> str:
    """One argument without the secrets in it: JSON by its keys, other text by its named values."""
    if argument.lstrip()[:1] in {"{", "["}:
        try:
            document = json.loads(argument)
        except (ValueError, RecursionError):
            document = None
        if document is not None:
            redacted = _redact_json(document, known)
            return argument if redacted == document else json.dumps(redacted)
    return _NAMED.sub(_hide_named, hide(argument, known))


def _redact_json(value: Any, known: frozenset[str]) -> Any:
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {name: _redact_member(name, one, known) for name, one in items}
    if isinstance(value, list):
        return [_redact_json(one, known) for one in cast("list[Any]", value)]
    return _redact_inside(value, known) if isinstance(value, str) else value


def _redact_member(name: str, value: Any, known: frozenset[str]) -> Any:
    if isinstance(value, str | int) and not isinstance(value, bool) and is_secret(name, str(value)):
        return HIDDEN
    return _redact_json(value, known)


def _hide_named(match: re.Match[str]) -> str:
    name, between, quote, quoted, bare = match.groups()
    value = quoted if quote else bare
    if value.startswith(HIDDEN[:-1]) or value.lower() in _SCHEMES or not is_secret(name, value):
        return match[0]
    return f"{name}{between}{quote or ''}{HIDDEN}{quote or ''}"


def redact_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Hide the values of secret variables and secret shapes."""
    known = values_of(os.environ) | values_of(environment)
    return {
        name: HIDDEN if is_secret_name(name) else _redact_inside(value, known)
        for name, value in environment.items()
    }

"""Keeps secrets out of a launch's record: by the name they go under, by shape, and by value."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from workbench.store.secrets import HIDDEN, hide, is_secret_name, values_of

__all__ = ["HIDDEN", "is_secret_name", "redact_arguments", "redact_environment", "redact_text"]

_COMMIT = {"revision", "commit", "sha", "rev", "hash", "checksum"}
# A named value inside an argument: {"token": "…"}, api_key=….
_NAMED = re.compile(r"([A-Za-z][\w.-]*)([\"']?\s*[:=]\s*[\"']?)([^\s\"',;&}\])]+)")


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
        if is_secret_name(before) and not argument.startswith("--"):
            result.append(HIDDEN)
        elif _COMMIT & set(re.split(r"[^a-z]+", (before + argument.partition("=")[0]).lower())):
            result.append(argument)
        else:
            result.append(hide(_NAMED.sub(_hide_named, argument), known))
        before = argument if argument.startswith("-") and "=" not in argument else ""
    return result


def _hide_named(found: re.Match[str]) -> str:
    name, between, value = found.groups()
    return f"{name}{between}{HIDDEN if is_secret_name(name) else value}"


def redact_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Hide the values of secret variables and secret shapes."""
    known = values_of(os.environ) | values_of(environment)
    return {
        name: HIDDEN if is_secret_name(name) else hide(value, known)
        for name, value in environment.items()
    }

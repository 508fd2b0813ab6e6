"""Keeps secrets out of the run directory: by the name they go under and by their shape."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

HIDDEN = "<redacted>"
_WORDS = {"token", "secret", "password", "passwd", "credential", "credentials", "auth", "apikey"}
_KEYS = {"api", "access", "secret", "private", "ssh"}
_SHAPES = re.compile(
    r"\b(hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|AKIA[0-9A-Z]{16}"
    r"|xox[abp]-[A-Za-z0-9-]{20,}|[0-9a-f]{40})\b"
)


def is_secret_name(name: str) -> bool:
    """Whether a variable or option of that name holds a secret.

    >>> is_secret_name("HF_TOKEN"), is_secret_name("--tokenizer_name"), is_secret_name("--api-key")
    (True, False, True)
    """
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word]
    return any(word in _WORDS for word in words) or ("key" in words and bool(_KEYS & set(words)))


def redact_text(text: str) -> str:
    """Hide substrings that have the shape of a known kind of key."""
    return _SHAPES.sub(HIDDEN, text)


def redact_arguments(arguments: Iterable[str]) -> list[str]:
    """Hide the values of secret options (``--token X`` and ``--token=X``) and secret shapes."""
    result: list[str] = []
    hide_next = False
    for argument in arguments:
        option, equals, _ = argument.partition("=")
        if hide_next and not argument.startswith("-"):
            result.append(HIDDEN)
            hide_next = False
            continue
        hide_next = argument.startswith("-") and not equals and is_secret_name(argument)
        if argument.startswith("-") and equals and is_secret_name(option):
            result.append(f"{option}={HIDDEN}")
        else:
            result.append(redact_text(argument))
    return result


def redact_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Hide the values of secret variables and secret shapes."""
    return {
        name: HIDDEN if is_secret_name(name) else redact_text(value)
        for name, value in environment.items()
    }

"""Secrets, by the name they go under, by their shape, and by the environment that holds them.

Everything that the workbench writes into a run directory passes through here. What a training
script prints itself stays in its own log: that is the user's file.
"""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

HIDDEN = "[redacted]"
_WORDS = {
    *("token", "secret", "password", "passwd", "passphrase", "credential", "credentials", "auth"),
    *("apikey", "authorization", "bearer"),
}
_KEYS = {"api", "access", "secret", "private", "ssh", "encryption", "signing", "master", "account"}
# Words beside "token" that make it a piece of text, not a key.
_TEXT = {
    *("pad", "eos", "bos", "unk", "mask", "cls", "sep", "special", "stop", "image", "boi", "eoi"),
    *(
        "num",
        "max",
        "min",
        "id",
        "ids",
        "type",
        "count",
        "length",
        "limit",
        "dropout",
        "new",
        "per",
    ),
}
# A 40-digit hexadecimal number is W&B's old key, but also a git commit: not where it is part of a
# path, as in a model's snapshot folder. Before the start of a key may stand JSON's escaped newline.
_START = r"(?:(?<![A-Za-z0-9_])|(?<=\\[nrtbf]))"
_SHAPES = re.compile(
    rf"{_START}(?:hf_[A-Za-z0-9]{{20,}}|sk-[A-Za-z0-9_-]{{20,}}|gh[pousr]_[A-Za-z0-9]{{30,}}"
    r"|github_pat_[A-Za-z0-9_]{30,}|glpat-[A-Za-z0-9_-]{20,}|npm_[A-Za-z0-9]{30,}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}|xox[abeprs]-[A-Za-z0-9-]{20,}|rpa_[A-Za-z0-9]{20,}"
    r"|wandb_v1_[A-Za-z0-9_-]{20,}|AIza[A-Za-z0-9_-]{35}"
    r"|eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,})"
    r"|(?<=://)[^\s/:@\"']+:[^\s/@\"']+(?=@)"
    r"|(?<=[Bb]earer )[A-Za-z0-9._~+/-]{16,}=*"
)
_HEXADECIMAL = re.compile(r"(?:(?<![\w/@.-])|(?<=\\[nrtbf]))[0-9a-f]{40}(?![\w/-])")
_LEARNT = set[str]()  # beside those of this process's own environment
_TO_ZERO = bytes.maketrans(b"0123456789abcdef", b"0" * 16)
_RUN_OF_40 = b"0" * 40
# One of these is in whatever _SHAPES finds; looking for them is thirty times as fast.
_SIGNS = (
    *("hf_", "sk-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "npm_"),
    *("AKIA", "ASIA", "xox", "rpa_", "wandb_v1_", "AIza", "eyJ", "://", "earer "),
)
_LEAST_LENGTH = 8  # of a value that is hidden wherever it stands: "train" is a word, too


def is_secret_name(name: str) -> bool:
    """Whether a variable or option of that name holds a secret.

    >>> is_secret_name("HF_TOKEN"), is_secret_name("--tokenizer_name"), is_secret_name("--api-key")
    (True, False, True)
    >>> is_secret_name("pad_token")
    False
    """
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)  # hubToken
    words = {word for word in re.split(r"[^a-z0-9]+", spaced.lower()) if word}
    if words & _TEXT and not words & (_WORDS - {"token"}):
        return False
    return bool(words & _WORDS) or ("key" in words and bool(_KEYS & words))


def values_of(environment: Mapping[str, str]) -> frozenset[str]:
    """The secret values of an environment that are long enough to be told from words."""
    return frozenset(
        value
        for name, value in environment.items()
        if is_secret_name(name)
        and len(value) >= _LEAST_LENGTH
        and not value.isdecimal()
        and not _is_path(value)  # SSH_AUTH_SOCK and key files: a path is no secret
    )


def _is_path(value: str) -> bool:
    try:
        return Path(value).exists()
    except (OSError, ValueError):
        return False


def hide(text: str, values: frozenset[str] = frozenset()) -> str:
    """`text` without what has the shape of a known kind of key, and without `values`."""
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    if any(sign in text for sign in _SIGNS):
        text = _SHAPES.sub(HIDDEN, text)
    if _RUN_OF_40 in text.encode("utf-8", errors="replace").translate(_TO_ZERO):
        text = _HEXADECIMAL.sub(HIDDEN, text)
    return text


def hide_known(text: str) -> str:
    """Like `hide`, with the secrets of this process's environment and those it learnt."""
    return hide(text, _own_values())


def hide_bytes(data: bytes) -> bytes:
    """Like `hide_known`, for a file's content."""
    text = data.decode("utf-8", errors="surrogateescape")
    return hide_known(text).encode("utf-8", errors="surrogateescape")


def learn(environment: Mapping[str, str]) -> None:
    """Hide the secrets of `environment` too in all that this process writes from now on."""
    _LEARNT.update(values_of(environment))
    _own_values.cache_clear()


@cache
def _own_values() -> frozenset[str]:
    """Also as they read inside JSON and HTML."""
    values = values_of(os.environ) | _LEARNT
    return values | {json.dumps(one)[1:-1] for one in values} | {html.escape(one) for one in values}

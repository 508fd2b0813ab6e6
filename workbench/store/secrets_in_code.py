"""Secrets in source code: only literals and comments are touched, so that code stays code.

`store.secrets.hide` is for logs and records: in code it takes ``authorization = build(x)`` for a
header and the commit of a pinned revision for a key. Here the text outside of literals is never
changed, and a literal only where it holds a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from workbench.store.secrets import (
    BASIC,
    COMMIT,
    HEADER,
    HEXADECIMAL,
    HIDDEN,
    QUERY,
    QUERY_NAMES,
    SHAPES,
    hide_basic,
    is_secret,
    is_secret_name,
    known_values,
    looks_drawn,
)

# Comments first: an apostrophe in one opens no literal.
_LITERALS = re.compile(
    r"(?P<comment>\#[^\n]*)"
    r"|(?P<prefix>[rRbBuUfF]{0,2})(?P<quote>\"\"\"|''')(?P<long>(?:\\.|(?!(?P=quote)).)*)(?P=quote)"
    r"|(?P<prefix1>[rRbBuUfF]{0,2})(?P<quote1>[\"'])(?P<short>(?:\\.|(?!(?P=quote1))[^\\\n])*)"
    r"(?P=quote1)",
    re.DOTALL,
)
_HOLES = re.compile(r"(\{[^{}\n]*\})")  # of an f-string: code
# What a literal is assigned to or compared with: name = , name: str = , "name": , x["name"] = ,
_NAME_BEFORE = re.compile(
    r"([A-Za-z_][\w.-]*)[\"']?\]?\s*(?::\s*[\w.\[\]| ]{1,40}\s)?\s*(?:[:=]|==|!=)\s*\Z"
)
_CALLED_WITH = re.compile(
    r"[\"']-*([A-Za-z_][\w.-]*)[\"']\s*,\s*(?:\w+\s*=\s*\w+\s*,\s*){0,4}(?:default\s*=\s*)?\Z"
)
_ASSIGNED_IN = re.compile(
    r"(?<!\w)([A-Za-z_][\w.-]{0,100})(\\?[\"']?\s*[:=]\s*)(\\?[\"']?)([^\s\"'\\,;)}\]]+)\3"
)
_BEFORE = 160  # characters
_LEAST = 8
_WORDS = re.compile(r"[A-Za-z_./ -]*")  # without a digit: identifiers, modules, words
_TEMPLATE = re.compile(r"[<>{}%]|\$[({A-Za-z]|\.\.\.|…|\*\*|x{6}|X{6}")
_OF_ADDRESS = {
    *("user", "username", "name", "password", "pass", "passwd", "pwd", "secret", "token", "key"),
    *("login", "your", "my"),
}
_PASSWORDS = {"password", "passwd", "pwd", "passphrase", "passcode"}


def hide_in_code(text: str) -> str:
    """Python source without the secrets of its literals and comments; without any it is the same.

    Also of a part of a file, as in a diff.

    >>> hide_in_code("token = read(path)  # key===value")
    'token = read(path)  # key===value'
    >>> hide_in_code("login(api_key='c0ffee11-badd-4ecafe')")
    "login(api_key='[redacted]')"
    """
    parts: list[str] = []
    end = 0
    for begin, stop, hidden in _changed(text):
        parts += [text[end:begin], hidden]
        end = stop
    return "".join([*parts, text[end:]])


def hide_assigned_words(text: str) -> str:
    """Any text without the values of ``name=value`` and ``name: value`` that are no plain words.

    >>> hide_assigned_words("API_KEY=c0ffee11badd and token: the next one")
    'API_KEY=[redacted] and token: the next one'
    """
    return _ASSIGNED_IN.sub(_hide_assigned, text)


def lines_with_secrets(text: str) -> list[int]:
    """Numbers of the lines in which `hide_in_code` hides something, from 1."""
    starts = (begin for begin, _, _ in _changed(text))
    return sorted({text.count("\n", 0, begin) + 1 for begin in starts})


def _changed(text: str) -> Iterator[tuple[int, int, str]]:
    """Begin, end and new text of each literal and comment that holds a secret."""
    secret_texts = sorted(known_values(), key=len, reverse=True)
    with_wandb = "wandb" in text.lower()
    for match in _LITERALS.finditer(text):
        group = next(kind for kind in ("comment", "long", "short") if match[kind] is not None)
        content, begin = match[group], match.start(group)
        if not content:
            continue
        line = text[text.rfind("\n", 0, begin) + 1 : match.end()]
        drawn_hash = _may_be_key(line, with_wandb=with_wandb)
        before = "" if group == "comment" else text[max(0, begin - _BEFORE) : match.start()]
        if _is_named_secret(before, content):
            yield begin, match.end(group), HIDDEN
            continue
        prefix = (match["prefix"] or match["prefix1"] or "").lower()
        pieces = _HOLES.split(content) if "f" in prefix else [content]
        hidden = "".join(
            piece if number % 2 else _hide_text(piece, secret_texts, drawn_hash=drawn_hash)
            for number, piece in enumerate(pieces)
        )
        if hidden != content:
            yield begin, match.end(group), hidden


def _is_named_secret(before: str, value: str) -> bool:
    """Whether what stands before a literal makes it a secret."""
    call = _CALLED_WITH.search(before)
    if call:  # a list of names looks the same
        return looks_drawn(value) and _is_credential(call[1], value)
    match = _NAME_BEFORE.search(before)
    return match is not None and _is_credential(match[1], value)


def _is_credential(name: str, value: str, *, prose: bool = False) -> bool:
    """Whether a literal of that name is a secret, and no word, identifier or placeholder."""
    if value == HIDDEN or not is_secret(name, value) or _TEMPLATE.search(value):
        return False
    words = {part for part in re.split(r"[^a-z0-9]+", name.lower()) if part}
    if words <= {"key", "x"} or not is_secret_name(name):
        return looks_drawn(value)
    if words & _PASSWORDS and not prose:
        return not _is_placeholder(value)
    return len(value) >= _LEAST and not re.search(r"\s", value) and not _WORDS.fullmatch(value)


def _is_placeholder(value: str) -> bool:
    words = {part for part in re.split(r"[^a-z]+", value.lower()) if part}
    plain = {re.sub(r"^(?:my|your)(?=[a-z])", "", word) for word in words}
    return plain <= _OF_ADDRESS or bool(_TEMPLATE.search(value))


def _may_be_key(line: str, *, with_wandb: bool) -> bool:
    """Whether 40 hexadecimal digits in this line may be an old key of W&B, and no commit."""
    words = set(re.split(r"[^a-z]+", line.lower()))
    return not words & COMMIT and (with_wandb or bool(words & {"key", "login", "token"}))


def _hide_text(text: str, secret_texts: list[str], *, drawn_hash: bool) -> str:
    """Text of a literal or a comment."""
    for value in secret_texts:
        text = text.replace(value, HIDDEN)
    text = SHAPES.sub(_hide_shape, text)
    text = QUERY.sub(partial(_hide_named, named=QUERY_NAMES), text)
    text = HEADER.sub(_hide_header, text)
    text = BASIC.sub(hide_basic, text)
    text = hide_assigned_words(text)
    return HEXADECIMAL.sub(HIDDEN, text) if drawn_hash else text


def _hide_shape(match: re.Match[str]) -> str:
    text = match[0]
    address = ":" in text and not text.startswith("-----")  # user:password
    value = text.partition(":")[2].partition("@")[0] if address else text
    return text if address and _is_placeholder(value) else HIDDEN


def _hide_named(match: re.Match[str], named: set[str]) -> str:
    name, value = match.groups()
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    secret = _is_credential(name, value) or (words & named and looks_drawn(value))
    return f"{name}={HIDDEN}" if secret else match[0]


def _hide_assigned(match: re.Match[str]) -> str:
    name, between, quote, value = match.groups()
    secret = _is_credential(name, value, prose=True) and not re.search(r"[(\[]", value)
    return f"{name}{between}{quote}{HIDDEN}{quote}" if secret else match[0]


def _hide_header(match: re.Match[str]) -> str:
    head = match[1] + (match[2] or "")
    value = match[0][len(head) :].partition("&")[0]
    plain = len(value) < _LEAST or _TEMPLATE.search(value) or _WORDS.fullmatch(value)
    return match[0] if plain or re.search(r"[(\[]", value) else f"{head}{HIDDEN}"

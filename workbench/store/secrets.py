"""Secrets, by the name they go under, by their shape, and by the environment that holds them.

Everything that the workbench writes into a run directory passes through here. What a training
script prints itself stays in its own log: that is the user's file.
"""

from __future__ import annotations

import base64
import contextlib
import html
import json
import os
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

HIDDEN = "[redacted]"
SECRET_WORDS = {
    *("token", "secret", "password", "passwd", "passphrase", "credential", "credentials", "auth"),
    *("apikey", "authorization", "bearer", "pwd", "pat", "passcode", "cookie"),
    *("accesskey", "secretkey", "privatekey", "accesstoken", "authtoken"),
}
# Words beside "key" that make it a secret: what it opens. Beside others its value decides.
_KEYS = {
    *("api", "access", "secret", "private", "ssh", "encryption", "signing", "master", "account"),
    *("wandb", "hf", "hub", "huggingface", "openai", "anthropic", "aws", "azure", "gcp", "google"),
    *("s3", "storage", "service", "comet", "neptune", "mlflow", "clearml", "swanlab", "runpod"),
    *("license", "auth", "client", "shared", "sas", "session", "deploy"),
}
# Words before "pass" that make it a password: whose it is. Without one it is a round, a kernel …
_ACCOUNTS = {
    *("db", "database", "sql", "mysql", "pg", "postgres", "mongo", "redis", "rabbitmq", "kafka"),
    *("smtp", "imap", "mail", "email", "ftp", "sftp", "ssh", "ldap", "mqtt", "proxy", "http"),
    *("registry", "docker", "git", "minio", "user", "admin", "root", "login", "account", "service"),
}
_KEY_KINDS = {"dim", "size", "heads", "length", "len", "path", "file", "name", "id", "type"}
_PASSWORD = re.compile(r"(?:password|passwd|sshpass)$")  # PGPASSWORD: no word ends in the middle
_PATHS = {"PWD", "OLDPWD"}  # of the shell: the working directory
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
SHAPES = re.compile(
    # user:password@ of an address, up to the last @; a port before a path is none. It comes first:
    # a user that has the shape of a key is no end of it (s3://AKIA…:SECRET@bucket).
    r"(?<=://)[^\s/:@\"'<>]{0,128}:(?!\d+(?:[/?#]|$))[^\s\"'<>]{1,256}(?=@[\w.\[])"
    r"|(?<=://)[A-Za-z0-9_~.-]{20,256}(?=@)"
    # Anyone who has such an address can post to it.
    r"|(?<=hooks\.slack\.com/)[\w/-]+|(?<=/api/webhooks/)\d+/[\w-]+"
    rf"|{_START}(?:hf_[A-Za-z0-9]{{20,}}|sk-[A-Za-z0-9_-]{{20,}}|gh[pousr]_[A-Za-z0-9]{{30,}}"
    r"|github_pat_[A-Za-z0-9_]{30,}|glpat-[A-Za-z0-9_-]{20,}|npm_[A-Za-z0-9]{30,}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}|xox[abeprs]-[A-Za-z0-9-]{20,}|rpa_[A-Za-z0-9]{20,}"
    r"|wandb_v1_[A-Za-z0-9_-]{20,}|AIza[A-Za-z0-9_-]{35}|nvapi-[A-Za-z0-9_-]{40,}"
    r"|eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,})"
    r"|(?<=[Bb]earer )[A-Za-z0-9._~+/-]{16,}=*"
    r"|-----BEGIN[A-Z ]* PRIVATE KEY-----.*?(?:-----END[A-Z ]* PRIVATE KEY-----|$)",
    re.DOTALL,
)
# Fields of an address: …?token=…&sig=…
QUERY = re.compile(r"(?<=[?&;#])([\w.%~-]+)=([^&;#\s\"'<>]+)")
QUERY_NAMES = {"key", "sig", "signature", "sas", "code", "awsaccesskeyid"}
HEADER = re.compile(
    r"(?i)(\b(?:proxy-)?authorization\\?[\"']?\s*[:=]\s*\\?[\"']?)"
    r"((?:basic|bearer|token|digest|negotiate|apikey)\s+)?[^\s\"',;\\]+"
)
BASIC = re.compile(r"(?<=[Bb]asic )[A-Za-z0-9+/_-]{8,}={0,2}")
HEXADECIMAL = re.compile(r"(?:(?<![\w/@.-])|(?<=\\[nrtbf]))[0-9a-f]{40}(?![\w/-])")
_LEARNT = set[str]()  # beside those of this process's own environment
_TO_ZERO = bytes.maketrans(b"0123456789abcdef", b"0" * 16)
_RUN_OF_40 = b"0" * 40
_OF_NUMBERS = b'0123456789.,[]{}"'
# One of these is in whatever SHAPES finds; looking for them is thirty times as fast.
_SIGNS = tuple(
    sign.translate(None, _OF_NUMBERS)
    for sign in (
        *(b"hf_", b"sk-", b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"github_pat_", b"glpat-"),
        *(
            b"npm_",
            b"AKIA",
            b"ASIA",
            b"xox",
            b"rpa_",
            b"wandb_v1_",
            b"AIza",
            b"nvapi-",
            b"eyJ",
            b"://",
        ),
        *(b"earer ", b"PRIVATE KEY", b"uthorization", b"UTHORIZATION", b"asic "),
    )
)
_LEAST_DRAWN = 16
_SWITCHES = {"", "true", "false", "none", "null", "yes", "no", "on", "off", "1", "0"}
COMMIT = {"revision", "commit", "sha", "rev", "hash", "checksum"}
# A named value inside an argument: {'token': '…'}, api_key=…; not what follows the : of an address.
# A word is tried from its beginning alone: from each letter of it, a long one would take minutes.
_NAMED = re.compile(
    r"(?<![\w.-])((?:(?![A-Za-z])[\w.-])*)([A-Za-z][\w.-]*)(\\?[\"']?\s*[:=]\s*)(?!//)"
    r"(?:(\\?[\"'])(.*?)\4|((?![\"'\\{\[])[^\s\"',;&}\])]+))"
)
# The same in a line of a script, or an object as Python prints it.
_QUOTED = re.compile(r"(?<!\w)(\w+)(\\?[\"']?\]?\s*[:=]\s*)(\\?[\"'])([\w~+/=.@!$%^&*-]{8,})\3")
# --set=logger.api_key=…, --header=X-Key: …: what is assigned may name its own value.
_ASSIGNED = re.compile(r"([-+]{0,2}[A-Za-z_][\w.-]*=)([^\s:=]+\s*[:=].*)", re.DOTALL)
_MOST_ASSIGNED = 3  # one in another
_SHORT_OPTION = "-p"  # of mysql, sshpass and their like; a port or a count is none
_SCHEMES = {"basic", "bearer", "token", "digest", "negotiate", "apikey"}
_LEAST_LENGTH = 8  # of a value that is hidden wherever it stands: "train" is a word, too


def is_secret_name(name: str) -> bool:
    """Whether a variable or option of that name holds a secret.

    >>> is_secret_name("HF_TOKEN"), is_secret_name("--tokenizer_name"), is_secret_name("--api-key")
    (True, False, True)
    >>> is_secret_name("pad_token")
    False
    """
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)  # hubToken
    in_order = [word for word in re.split(r"[^a-z0-9]+", spaced.lower()) if word]
    words = set(in_order)
    if name in _PATHS or (words & _TEXT and not words & (SECRET_WORDS - {"token"})):
        return False
    if "key" in words:
        return bool(words & (SECRET_WORDS | _KEYS)) or words <= {"x", "key"}  # X-Key: …
    if in_order[-1:] == ["pass"] and words & _ACCOUNTS:  # DB_PASS
        return True
    return bool(words & SECRET_WORDS) or any(map(_PASSWORD.search, words))


def is_secret(name: str, value: str) -> bool:
    """Whether `value` is a secret under that name: by the name, or as a key that looks drawn.

    >>> is_secret("image_key", "pixel_values"), is_secret("image_key", "9f8A7c6B5d4e3F2a1b0c")
    (False, True)
    >>> is_secret("use_auth_token", "true")
    False
    """
    if value.lower() in _SWITCHES:
        return False
    if is_secret_name(name):
        return True
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    return "key" in words and not words & _KEY_KINDS and looks_drawn(value)


def looks_drawn(value: str) -> bool:
    """Whether it looks drawn at random: long, letters and digits mixed, and no word among them."""
    if len(value) < _LEAST_DRAWN or not re.fullmatch(r"[A-Za-z0-9_~+/=.-]+", value):
        return False
    digits = sum(character.isdigit() for character in value)
    longest_word = max((len(word) for word in re.findall(r"[a-z]+|[A-Z]+", value)), default=0)
    return 3 <= digits < len(value) and longest_word <= len(value) // 3


def values_of(environment: Mapping[str, str]) -> frozenset[str]:
    """The secret values of an environment that are long enough to be told from words."""
    return frozenset(
        value
        for name, value in environment.items()
        if (is_secret_name(name) or is_secret(name, value))
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
    # Most of what is written is numbers: without them the signs are looked for in a tenth of it.
    words = text.encode("utf-8", errors="replace").translate(None, _OF_NUMBERS)
    if any(sign in words for sign in _SIGNS):
        text = SHAPES.sub(HIDDEN, text)
        text = QUERY.sub(_hide_query, text)
        text = HEADER.sub(rf"\1\2{HIDDEN}", text)
        text = BASIC.sub(hide_basic, text)
    if _RUN_OF_40 in text.encode("utf-8", errors="replace").translate(_TO_ZERO):
        text = HEXADECIMAL.sub(HIDDEN, text)
    return text


def _hide_query(match: re.Match[str]) -> str:
    name, value = match.groups()
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    secret = is_secret(name, value) or words & QUERY_NAMES
    return f"{name}={HIDDEN}" if secret else match[0]


def hide_basic(match: re.Match[str]) -> str:
    """HTTP's user:password in base 64."""
    try:
        text = base64.b64decode(match[0] + "=" * (-len(match[0]) % 4), altchars=b"-_").decode()
    except ValueError:
        return match[0]
    return HIDDEN if ":" in text and text.isprintable() else match[0]


def hide_known(text: str) -> str:
    """Like `hide`, with the secrets of this process's environment and those it learnt."""
    return hide(text, known_values())


def hide_bytes(data: bytes) -> bytes:
    """Like `hide_known`, for a file's content; JSON stays JSON, whatever stood in its texts."""
    text = data.decode("utf-8", errors="surrogateescape")
    hidden = hide_known(text)
    if hidden == text:
        return data
    with contextlib.suppress(ValueError, RecursionError):
        if text.startswith(("{", "[")):
            document = _hide_in(json.loads(text), known_values())
            indent = 2 if text.startswith(("{\n", "[\n")) else None
            hidden = json.dumps(
                document, indent=indent, separators=None if indent else (",", ":")
            ) + ("\n" if text.endswith("\n") else "")
    return hidden.encode("utf-8", errors="surrogateescape")


def hide_failure(document: dict[str, Any], arguments: Iterable[str]) -> dict[str, Any]:
    """A rank's record of its end: texts of exceptions and source lines, without secrets.

    `arguments`: the script's. A quoted value of a secret's name is one, too: `api_key="…"`.
    """
    learn({}, secret_values(arguments))
    return _hide_in(document, known_values(), quoted=True)


def _hide_in(value: Any, secret_texts: frozenset[str], *, quoted: bool = False) -> Any:
    """A document of JSON, with the secrets of its texts hidden."""
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {name: _hide_in(item, secret_texts, quoted=quoted) for name, item in items}
    if isinstance(value, list | tuple):
        members = cast("Iterable[Any]", value)
        return [_hide_in(member, secret_texts, quoted=quoted) for member in members]
    if not isinstance(value, str):
        return value
    hidden = hide(value, secret_texts)
    return _QUOTED.sub(_hide_quoted, hidden) if quoted else hidden


def _hide_quoted(match: re.Match[str]) -> str:
    name, between, quote, _ = match.groups()
    return f"{name}{between}{quote}{HIDDEN}{quote}" if is_secret_name(name) else match[0]


def learn(environment: Mapping[str, str], values: Iterable[str] = ()) -> None:
    """Hide the secrets of `environment` too in all that this process writes from now on.

    `values`: secrets that stand elsewhere; short ones cannot be told from words.
    """
    _LEARNT.update(values_of(environment))
    _LEARNT.update(value for value in values if len(value) >= _LEAST_LENGTH)
    known_values.cache_clear()


@cache
def known_values() -> frozenset[str]:
    """Also as they read inside JSON and HTML."""
    values = values_of(os.environ) | _LEARNT
    return (
        values
        | {json.dumps(value)[1:-1] for value in values}
        | {html.escape(value) for value in values}
    )


def redact_arguments(arguments: Iterable[str]) -> list[str]:
    """Hide the values of secret options and the secrets inside other arguments.

    >>> redact_arguments(["--token", "X", "--lr=1", "wandb.api_key=Y", "--pad_token", "<pad>"])
    ['--token', '[redacted]', '--lr=1', 'wandb.api_key=[redacted]', '--pad_token', '<pad>']
    """
    secret_texts = values_of(os.environ)
    result: list[str] = []
    before = ""
    for argument in arguments:
        if _is_secret_value(before, argument):
            result.append(HIDDEN)
        elif COMMIT & set(re.split(r"[^a-z]+", (before + argument.partition("=")[0]).lower())):
            result.append(argument)
        else:
            result.append(_redact_inside(argument, secret_texts))
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
            visible_parts = [re.escape(part) for part in redacted.split(HIDDEN)]
            match = re.fullmatch("(.+?)".join(visible_parts), plain, re.DOTALL)
            values += match.groups() if match is not None else ()
    return values


def _is_secret_value(option: str, value: str) -> bool:
    """Whether `value`, which follows `option`, is the option's secret."""
    if not option or value.startswith("--"):
        return False
    if option == _SHORT_OPTION:
        return not re.fullmatch(r"[\d.:,-]+|[a-z]", value) and not _is_path(value)
    return is_secret(option, value)


def _redact_inside(argument: str, secret_texts: frozenset[str]) -> str:
    """One argument without the secrets in it: JSON by its keys, other text by its named values."""
    before = ""
    for _ in range(_MOST_ASSIGNED):
        match = _ASSIGNED.fullmatch(argument)
        if match is None or is_secret(match[1], match[2]):
            break
        before, argument = before + match[1], match[2]
    return before + _redact_value(argument, secret_texts)


def _redact_value(argument: str, secret_texts: frozenset[str]) -> str:
    if argument.lstrip()[:1] in {"{", "["}:
        try:
            document = json.loads(argument)
        except (ValueError, RecursionError):
            document = None
        if document is not None:
            redacted = _redact_json(document, secret_texts)
            return argument if redacted == document else json.dumps(redacted)
    return _NAMED.sub(_hide_named, hide(argument, secret_texts))


def _redact_json(value: Any, secret_texts: frozenset[str]) -> Any:
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {name: _redact_member(name, item, secret_texts) for name, item in items}
    if isinstance(value, list):
        return [_redact_json(item, secret_texts) for item in cast("list[Any]", value)]
    return _redact_inside(value, secret_texts) if isinstance(value, str) else value


def _redact_member(name: str, value: Any, secret_texts: frozenset[str]) -> Any:
    if isinstance(value, str | int) and not isinstance(value, bool) and is_secret(name, str(value)):
        return HIDDEN
    return _redact_json(value, secret_texts)


def _hide_named(match: re.Match[str]) -> str:
    before, name, between, quote, quoted, bare = match.groups()
    value = quoted if quote else bare
    if value.startswith(HIDDEN[:-1]) or value.lower() in _SCHEMES or not is_secret(name, value):
        return match[0]
    return f"{before}{name}{between}{quote or ''}{HIDDEN}{quote or ''}"


def redact_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Hide the values of secret variables and secret shapes.

    >>> redact_environment({"NGC_CLI_KEY": "9f8A7c6B5d4e3F2a1b0c", "DB_PASS": "x", "LR": "1e-4"})
    {'NGC_CLI_KEY': '[redacted]', 'DB_PASS': '[redacted]', 'LR': '1e-4'}
    """
    secret_texts = values_of(os.environ) | values_of(environment)
    return {
        name: HIDDEN
        if is_secret_name(name) or is_secret(name, value)
        else _redact_inside(value, secret_texts)
        for name, value in environment.items()
    }

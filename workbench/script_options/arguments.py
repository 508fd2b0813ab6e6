"""The arguments of a script with some changed, as the script's own parser would read them."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from workbench.describe.option import several
from workbench.errors import UsageError
from workbench.script_options.values import ScriptOption, ScriptOptions

ALL = "*"
"""What to drop for all arguments."""
_NUMBER = re.compile(r"-(\d|\.\d|inf\b|nan\b)")
_KEYED = re.compile(r"[+~]{0,2}[A-Za-z_][\w./@-]*=")  # Hydra's and OmegaConf's key=value


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """An option with its values, or one word of its own."""

    name: str
    """The option's name, the key of ``key=value``, or "" for a plain word."""
    words: tuple[str, ...]
    """As typed."""
    unsure: bool = False
    """Whether some of the words may be none of its values."""


def changed_arguments(
    old: Sequence[str],
    new: Sequence[str],
    drop: Sequence[str] = (),
    declared: ScriptOptions | None = None,
) -> list[str]:
    """`old` without what is dropped, and with what is `new` in place of what has its name.

    An option goes with its values, in all its spellings and each time it was given. Words without
    an option replace all such words of before; ``key=value`` replaces its key.

    >>> changed_arguments(["--lr", "3e-4", "--steps", "9", "--bf16"], ["--lr", "1e-4"])
    ['--steps', '9', '--bf16', '--lr', '1e-4']
    >>> changed_arguments(["--lr", "3e-4", "--bf16"], [], ["--lr"])
    ['--bf16']

    Raises:
        UsageError: nothing of that name is there, or it is unclear which words belong to it.
    """
    declared, drop = declared or ScriptOptions(), several(drop)
    if ALL in drop:
        return list(new)
    parts, added = list(parts_of(old, declared)), list(parts_of(new, declared))
    dropped = set[str]()
    for name in drop:
        dropped |= _dropped(name, parts, declared)
    for part in added:
        if part.name:
            dropped |= declared.spellings(part.name)
    plain = any(not part.name for part in added)
    bare = {
        name for part in added if len(part.words) == 1 for name in declared.spellings(part.name)
    }
    remaining = list[str]()
    dropped_spellings = {spelling for name in drop for spelling in declared.spellings(name)}
    for part in parts:
        if part.name in dropped and part.name:
            switch = part.name in bare or (
                part.name in dropped_spellings and not _is_value(part.words[-1])
            )
            _check_sure(part, switch=switch, declared=declared)
        elif part.name or not (plain or part.words[0] in dropped):
            remaining += part.words
    end = remaining.index("--") if "--" in remaining else len(remaining)
    return [*remaining[:end], *new, *remaining[end:]]


def _dropped(name: str, parts: Sequence[Part], declared: ScriptOptions) -> set[str]:
    """Names, or plain words, that go with `name`."""
    spellings = declared.spellings(name.partition("=")[0] if name.startswith("-") else name)
    for part in parts:
        if (part.name and part.name in spellings) or (not part.name and part.words[0] == name):
            return {*spellings, name}
    names = sorted({part.name or part.words[0] for part in parts})
    raise UsageError(
        f"--drop {name}: the run has no such argument. It has: {' '.join(names) or 'none'}."
    )


def _is_value(word: str) -> bool:
    """Whether it is surely the value of what is before it: few scripts take a number by itself."""
    if word.lower() in {"true", "false"}:
        return True
    with contextlib.suppress(ValueError):
        return not math.isnan(float(word))
    return False


def _check_sure(part: Part, *, switch: bool, declared: ScriptOptions) -> None:
    """`switch`: it may take no value, so that what followed it may be another's."""
    guessed = (
        is_option(part.name)
        and declared.of(part.name) is None
        and declared.positionals is not False
    )
    if part.unsure or (switch and guessed and len(part.words) > 1):
        raise UsageError(
            f"{part.name} is followed by {' '.join(part.words[1:])}, and the script does not say "
            "which of these are its values. Give all arguments again: workbench resume RUN --drop "
            f"'{ALL}' -- ARGS…"
        )


def parts_of(words: Sequence[str], declared: ScriptOptions) -> Iterator[Part]:
    """The words, each option with its values."""
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            yield from (Part(name="", words=(word,)) for word in words[at:])
            return
        if not is_option(word):
            keyed = _KEYED.match(word)
            yield Part(name=keyed[0].lstrip("+~") if keyed else "", words=(word,))
            at += 1
            continue
        name, equals, _ = word.partition("=")
        if not equals and declared.of(name) is None and _glued(name, declared):
            name, equals = name[:2], "="
        following = 0 if equals else _values(words[at + 1 :])
        option = declared.of(name)
        count, unsure = _value_count(option, following, declared.positionals)
        yield Part(name=name, words=tuple(words[at : at + 1 + count]), unsure=unsure)
        at += 1 + count


def _glued(word: str, declared: ScriptOptions) -> bool:
    """``-n5``: a short option with its value in one word."""
    return not word.startswith("--") and len(word) > 2 and word[:2] in declared.by_name


def _value_count(
    option: ScriptOption | None,
    following: int,
    positionals: bool | None,  # noqa: FBT001
) -> tuple[int, bool]:
    """How many of the following words are its values, and whether that is a guess."""
    if option is None:
        return following, following > 1 and positionals is not False
    return following if option.most is None else min(following, option.most), False


def _values(words: Sequence[str]) -> int:
    """Words up to the next option."""
    return next((at for at, word in enumerate(words) if is_option(word)), len(words))


def is_option(word: str) -> bool:
    """Whether it is an option, not a value as ``-1e-4`` is one.

    >>> [is_option(word) for word in ("--lr", "-n", "-1", "-.5", "-", "x", "--")]
    [True, True, False, False, False, False, True]
    """
    return word.startswith("-") and len(word) > 1 and not _NUMBER.match(word)

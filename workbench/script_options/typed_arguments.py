"""What stands in a text of arguments: each option with its values and its place."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from workbench.errors import UsageError
from workbench.script_options.arguments import is_option, parts_of
from workbench.script_options.values import ScriptOption, ScriptOptions

_WORD = re.compile(r"""(?:[^ \t\r\n'"\\]|\\.|'[^']*'|"(?:[^"\\]|\\.)*")+""", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedArgument:
    """An option, or a plain word, in the text."""

    option: ScriptOption | None
    """Which one; None = not known."""
    spelling: str
    """As it was typed, without values."""
    values: tuple[str, ...]
    """What follows it, or the plain word."""
    joined: bool
    """Whether the value stands in one word with it, as ``--lr=1``."""
    start: int
    """Where it begins in the text."""
    end: int
    """Where it ends."""


def words_in(text: str) -> list[tuple[str, int, int]]:
    """The words as a shell reads them, each with its place.

    >>> words_in("--name 'a b'")
    [('--name', 0, 6), ('a b', 7, 12)]

    Raises:
        UsageError: a quotation mark is open.
    """
    try:
        shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"The arguments cannot be read: {error}. Close the quotation mark, or put a backslash "
            "before it."
        ) from error
    return [("".join(shlex.split(match[0])), *match.span()) for match in _WORD.finditer(text)]


def given_in(text: str, declared: ScriptOptions) -> list[TypedArgument]:
    """Everything that the text gives, in its order.

    Raises:
        UsageError: a quotation mark is open.
    """
    words = words_in(text)
    arguments, at = list[TypedArgument](), 0
    for part in parts_of([word for word, _, _ in words], declared):
        start, end = words[at][1], words[at + len(part.words) - 1][2]
        option, spelling, values, joined = _read(part.name, part.words, declared)
        arguments.append(
            TypedArgument(
                option=option, spelling=spelling, values=values, joined=joined, start=start, end=end
            )
        )
        at += len(part.words)
    return list(_placed(arguments, declared))


def _read(
    name: str, words: Sequence[str], declared: ScriptOptions
) -> tuple[ScriptOption | None, str, tuple[str, ...], bool]:
    """An option of the text: which it is, its spelling and values, whether in one word."""
    if not is_option(name):
        return None, "", tuple(words), False
    option = declared.of(name)
    suffix = words[0][len(name) :]
    if suffix:
        return option, name, (suffix.removeprefix("="), *words[1:]), True
    return option, name, tuple(words[1:]), False


def _placed(arguments: Sequence[TypedArgument], declared: ScriptOptions) -> Iterator[TypedArgument]:
    """Plain words next to each other are of the words that the script takes, in their order."""
    plain = [
        argument for argument in arguments if not argument.spelling and argument.values != ("--",)
    ]
    places = iter(_places(declared.words, len(plain)))
    options_by_id = {id(argument): next(places, None) for argument in plain}
    waiting: TypedArgument | None = None
    for argument in arguments:
        option = options_by_id.get(id(argument))
        if waiting and option is not None and option is waiting.option and option.most != 1:
            waiting = replace(waiting, values=(*waiting.values, *argument.values), end=argument.end)
            continue
        if waiting:
            yield waiting
            waiting = None
        if option is None:
            yield argument
        else:
            waiting = replace(argument, option=option)
    if waiting:
        yield waiting


def _places(words: Sequence[ScriptOption], count: int) -> Iterator[ScriptOption]:
    """Whose value each plain word is; one with any number takes what the later ones leave."""
    for at, option in enumerate(words):
        later = sum(other.least for other in words[at + 1 :])
        most = count if option.most is None else option.most
        for _ in range(max(0, min(most, count - later))):
            yield option
            count -= 1

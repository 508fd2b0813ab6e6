"""The arguments of the training in a shell script, as far as they can be read without running it.

Simple variables are filled in. Options that a variable or an array holds are read where they are
assigned. Of several commands one is read: the others' options are of other programs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from workbench.errors import UsageError

END = "--"
"""Stands at the end of a script's line: what follows is no value of its last option."""
_ENDS = {END, "&&", "||", ";", "|", "&"}
_LAUNCHERS = {
    *("torchrun", "accelerate", "deepspeed", "srun", "mpirun"),
    *("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"),
}
_ASSIGNED = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(?:\$\{\w+:?[-=]([^}$]*)\}|([^\s;$`(]+))\Z")
_OPTIONS = re.compile(r"([A-Za-z_]\w*)\+?=((?:.*\s)?--\w.*)\Z", re.DOTALL)
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)(?::-([^}]*))?\}?")
_ALL_OF_ARRAY = re.compile(r"\$\{\w+\[[@*]\]\}\Z|\$@\Z")
_ARRAY = re.compile(r"\A(?:[A-Za-z_]\w*\+?=)?\(")


def training_words(path: Path, text: str) -> tuple[list[str], list[str]]:
    """Words of the script without those of its other commands, and the scripts of those.

    Raises:
        UsageError: a quotation mark is open.
    """
    commands = [*_commands(_words(path, text))]
    own = [command for command in commands if _script_of(command)]
    chosen = max(own, key=_weight, default=None)
    left_out = [command for command in own if command is not chosen and _weight(command)[1]]
    remaining = [command for command in commands if not any(command is each for each in left_out)]
    names = dict.fromkeys(_script_of(command) for command in left_out)
    return [word for command in remaining for word in (*command, END)], [*names]


def _words(path: Path, text: str) -> list[str]:
    """All words, comments and line ends left out, simple variables filled in."""
    try:
        lines = text.replace("\\\n", " ").replace("\n", f"\n{END}\n")
        words = shlex.split(lines, comments=True)
    except ValueError as error:
        raise UsageError(f"{path} cannot be read as a command line: {error}.") from error
    assigned = [match for word in words if (match := _ASSIGNED.match(word))]
    variables = {match[1]: match[3] if match[2] is None else match[2] for match in assigned}
    read_above = {match[1] for word in words if (match := _OPTIONS.match(word))}
    parts: list[str] = []
    for word in words:
        name = _VARIABLE.fullmatch(word)
        if not _ALL_OF_ARRAY.match(word) and (name is None or name[1] not in read_above):
            filled = _VARIABLE.sub(
                lambda match: variables.get(match[1], match[2] or match[0]), word
            )
            parts += _parts(filled)
    return parts


def _parts(word: str) -> list[str]:
    """A word without what a shell's arrays put around it; an option that was quoted with its value.

    >>> _parts("(--bf16"), _parts("ARGS+=("), _parts("--fp8-format hybrid"), _parts(")")
    (['--bf16'], [], ['--fp8-format', 'hybrid'], [])
    >>> _parts("ARGS= --bf16 --seq-length 4096")
    ['--bf16', '--seq-length', '4096']
    """
    if held := _OPTIONS.match(word):
        return held[2].split()
    plain = _ARRAY.sub("", word).rstrip(")") if "(" in word or word.endswith(")") else word
    if plain.startswith("--"):
        return plain.split() or [END]
    return [plain] if plain.strip() and not _ASSIGNED.match(plain) else []


def _commands(words: Sequence[str]) -> Iterator[list[str]]:
    """The words between ends of lines and commands."""
    command: list[str] = []
    for word in words:
        if word not in _ENDS and not word.endswith(";"):
            command.append(word)
            continue
        yield [*command, word.rstrip(";")] if word not in _ENDS else command
        command = []
    yield command


def _script_of(command: Sequence[str]) -> str:
    """The Python script or module that a command runs; "" = none."""
    for word, following in pairwise([*command, ""]):
        if word.endswith(".py") and not word.startswith("-"):
            return word
        if word == "-m" and following not in _LAUNCHERS:
            return following
    return ""


def _weight(command: Sequence[str]) -> tuple[bool, int]:
    """How much a command looks like the training: by a launcher, then by its options."""
    launched = any(word.rpartition("/")[2] in _LAUNCHERS for word in command)
    return launched, sum(word.startswith("--") for word in command)

"""What is known of a script's command line, as frozen values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["text", "path", "integer", "number", "switch", "truth"]
"""What an option takes: free text, a file or folder, a number, nothing, or a word for yes or no."""
Default = bool | int | float | str | None
Way = Literal["recipe", "source", "run", "none"]
"""How the options were learned: from the recipe's own parser, from the source, by a run, not."""
_PATHS = {"dir", "path", "file", "folder", "directory", "ckpt", "checkpoint"}
_UNIT = re.compile(
    r"(?:in |\(|^)(seconds|minutes|hours|days|optimizer steps|steps|epochs|tokens|bytes|sequences"
    r"|samples|GPUs|ranks|MB|MiB|GB|GiB|HOURS)\b",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOption:
    """One option, or one word without an option, as the script declares it."""

    names: tuple[str, ...]
    """All its spellings, as ``-n`` and ``--num``; of a word without an option, its name."""
    off: tuple[str, ...] = ()
    """Those of them that switch it off, as ``--no-compile``."""
    least: int = 1
    """Values that follow it at least."""
    most: int | None = 1
    """Values that follow it at most; None = any number."""
    kind: Kind = "text"
    """What its values are."""
    default: Default = None
    """Without it; None = none, or not known. Several values are one text, as in a shell."""
    choices: tuple[str, ...] = ()
    """The only values; empty = any."""
    help: str = ""
    """What the script says of it."""
    group: str = ""
    """Heading that the script puts it under; "" = none of its own."""
    required: bool = False
    """Whether the script refuses to start without it."""
    repeated: bool = False
    """Whether it may be given several times, each adding a value."""

    @property
    def name(self) -> str:
        """Its first long spelling, by which people know it."""
        return next((name for name in self.names if name.startswith("--")), self.names[0])

    @property
    def is_word(self) -> bool:
        """Whether it is given by its place alone."""
        return not self.names[0].startswith("-")

    @property
    def is_switch(self) -> bool:
        """Whether it is on or off, with or without a word for it."""
        return self.kind == "switch"

    @property
    def takes_text(self) -> bool:
        """Whether its value is one free text: no number, no choice."""
        return (
            self.kind in {"text", "path"}
            and self.most == 1
            and not self.choices
            and not self.repeated
        )

    @property
    def unit(self) -> str:
        """Unit of its number as its help names it; "" = none is named."""
        match = _UNIT.search(self.help) if self.kind in {"integer", "number"} else None
        return match[1].lower().removeprefix("optimizer ") if match else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOptions:
    """What is known of a script's command line without running its training."""

    options: tuple[ScriptOption, ...] = ()
    """In the order of their declarations."""
    words: tuple[ScriptOption, ...] = ()
    """What it takes without an option, by its place."""
    positionals: bool | None = None
    """Whether it takes words without an option; None = it has no parser that is known."""
    by_name: Mapping[str, ScriptOption] = field(default_factory=dict[str, ScriptOption])
    """Each spelling -> its option."""

    def of(self, name: str) -> ScriptOption | None:
        """The option of that name, or of the only one that begins so, as argparse allows it."""
        if name in self.by_name or not name.startswith("--"):
            return self.by_name.get(name)
        fits = {id(option): option for key, option in self.by_name.items() if key.startswith(name)}
        return next(iter(fits.values())) if len(fits) == 1 else None

    def spellings(self, name: str) -> frozenset[str]:
        """All names of the option."""
        option = self.of(name)
        return frozenset({name, *(option.names if option else ())})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A script's options, and how they were learned."""

    known: ScriptOptions = field(default_factory=ScriptOptions)
    """The options."""
    way: Way = "none"
    """How they were learned."""
    complete: bool = False
    """Whether these are all options of the script."""
    note: str = ""
    """How they were learned, or what is missing and why, in a sentence or two."""
    description: str = ""
    """What the script says of itself above its options."""
    help: str = ""
    """The script's own help page; "" = only a run would show it."""
    can_run: bool = False
    """Whether running the script up to its parser may show more."""


def options_of(listed: list[ScriptOption], positionals: bool | None) -> ScriptOptions:  # noqa: FBT001
    """The options as one value; the first declaration of a name counts."""
    by_name, options = dict[str, ScriptOption](), list[ScriptOption]()
    for option in listed:
        new = {name: option for name in option.names if name not in by_name}
        if new and not option.is_word:
            options.append(option)
            by_name |= new
    return ScriptOptions(
        options=tuple(options),
        words=tuple(option for option in listed if option.is_word),
        positionals=positionals,
        by_name=by_name,
    )


def kind_of(kind: str, name: str) -> Kind:
    """What an option takes, from the name of the function that reads it.

    >>> kind_of("int", "--steps"), kind_of("str", "--output_dir"), kind_of("str2bool", "--bf16")
    ('integer', 'path', 'truth')
    """
    if kind in {"int", "float", "complex"}:
        return "integer" if kind == "int" else "number"
    if "bool" in kind.lower():
        return "truth"
    words = set(re.split(r"[-_]+", name.lower()))
    is_path = kind.rpartition(".")[2] in {"Path", "FileType", "PosixPath", "File"}
    return "path" if is_path or words & _PATHS else "text"

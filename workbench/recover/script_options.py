"""The command line of a script: which options it declares, and its arguments with some changed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.errors import UsageError
from workbench.store.python_source import parse_python

ALL = "*"
"""What to drop for all arguments."""
_DECLARING = {"add_argument", "add", "option", "Option"}  # argparse, our recipes, click, typer
_SWITCHES = {"store_true", "store_false", "store_const", "append_const", "count", "help", "version"}
_MAX_FILES, _MAX_BYTES = 20, 1 << 20
_NUMBER = re.compile(r"-(\d|\.\d|inf\b|nan\b)")
_KEYED = re.compile(r"[+~]{0,2}[A-Za-z_][\w./@-]*=")  # Hydra's and OmegaConf's key=value


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOption:
    """One option as the script declares it."""

    names: tuple[str, ...]
    """All its spellings, as ``-n`` and ``--num``."""
    least: int = 1
    """Values that follow it at least."""
    most: int | None = 1
    """Values that follow it at most; None = any number."""
    takes_text: bool = True
    """Whether its value is one free text: no number, no choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOptions:
    """What is known of a script's command line without running it."""

    options: tuple[ScriptOption, ...] = ()
    """In the order of their declarations."""
    positionals: bool | None = None
    """Whether it takes words without an option; None = it has no parser that is known."""
    by_name: Mapping[str, ScriptOption] = field(default_factory=dict[str, ScriptOption])
    """Each spelling -> its option."""

    def of(self, name: str) -> ScriptOption | None:
        """The option of that name, or of the only one that begins so, as argparse allows it."""
        if name in self.by_name or not name.startswith("--"):
            return self.by_name.get(name)
        fits = {id(one): one for key, one in self.by_name.items() if key.startswith(name)}
        return next(iter(fits.values())) if len(fits) == 1 else None

    def spellings(self, name: str) -> frozenset[str]:
        """All names of the option."""
        option = self.of(name)
        return frozenset({name, *(option.names if option else ())})


def script_options(script: Path) -> ScriptOptions:
    """The options that a script, or a module beside it, declares; nothing is run."""
    by_name, positionals = dict[str, ScriptOption](), list[bool | None]()
    options = list[ScriptOption]()
    for tree in _sources(script):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _name(node.func) == "HfArgumentParser":
                positionals.append(False)
            if isinstance(node, ast.Call) and _name(node.func) == "ArgumentParser":
                positionals.append(False)
            one = _declared(node)
            if one is None:
                continue
            if not one.names[0].startswith("-"):
                positionals.append(True)
                continue
            options.append(one)
            by_name |= {name: one for name in one.names if name not in by_name}
    known = None if not positionals else any(positionals)
    return ScriptOptions(options=tuple(options), positionals=known, by_name=by_name)


def _sources(script: Path) -> Iterator[ast.Module]:
    """The script, and modules beside it that it imports."""
    waiting, seen = [script], {script}
    while waiting and len(seen) <= _MAX_FILES:
        try:
            with waiting.pop(0).open("rb") as file:
                tree = parse_python(file.read(_MAX_BYTES))
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue
        yield tree
        for module in _imported(tree):
            path = script.parent.joinpath(*module.split("."))
            for place in (path.with_suffix(".py"), path / "__init__.py"):
                if place not in seen and place.is_file():
                    seen.add(place)
                    waiting.append(place)


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _declared(node: ast.AST) -> ScriptOption | None:
    """The option that a call of argparse, click or typer declares."""
    if not isinstance(node, ast.Call) or _name(node.func) not in _DECLARING:
        return None
    texts = [one.value for one in node.args if isinstance(one, ast.Constant)]
    names = [part for text in texts if isinstance(text, str) for part in text.split("/")]
    if not names or not all(re.fullmatch(r"-{0,2}[A-Za-z_][\w.-]*", name) for name in names):
        return None
    about = {one.arg: one.value for one in node.keywords if one.arg}
    action = _constant(about.get("action"))
    optional = _name(about["action"]) == "BooleanOptionalAction" if "action" in about else False
    if optional:
        names += [f"--no-{name[2:]}" for name in names if name.startswith("--")]
    switch = optional or action in _SWITCHES or _constant(about.get("is_flag")) is True
    switch = switch or any("/" in text for text in texts if isinstance(text, str))
    least, most = (0, 0) if switch else _count(_constant(about.get("nargs")))
    kind = ast.unparse(about["type"]) if "type" in about else "str"
    number = kind in {"int", "float", "complex"} or "bool" in kind.lower()
    text = not number and action in {None, "store"} and "choices" not in about
    return ScriptOption(
        names=tuple(names), least=least, most=most, takes_text=text and not switch and most == 1
    )


def _constant(value: ast.expr | None) -> Any:
    return value.value if isinstance(value, ast.Constant) else None


def _count(nargs: object) -> tuple[int, int | None]:
    if isinstance(nargs, int):
        return nargs, nargs
    return {"?": (0, 1), "*": (0, None), "+": (1, None), "...": (0, None)}.get(str(nargs), (1, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
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
    known: ScriptOptions | None = None,
) -> list[str]:
    """`old` without what is dropped, and with what is `new` in place of what has its name.

    An option goes with its values, in all its spellings and each time it was given. Words without
    an option replace all such words of before; ``key=value`` replaces its key.

    >>> changed_arguments(["--lr", "3e-4", "--steps", "9", "--bf16"], ["--lr", "1e-4"])
    ['--steps', '9', '--bf16', '--lr', '1e-4']
    >>> changed_arguments(["--lr", "3e-4", "--bf16"], [], ["--lr"])
    ['--bf16']

    Raises:
        UsageError: nothing of that name is there, or nobody knows which words belong to it.
    """
    known = known or ScriptOptions()
    if ALL in drop:
        return list(new)
    parts, added = list(_parts(old, known)), list(_parts(new, known))
    gone = set[str]()
    for name in drop:
        gone |= _dropped(name, parts, known)
    for part in added:
        if part.name:
            gone |= known.spellings(part.name)
    plain = any(not part.name for part in added)
    kept = list[str]()
    for part in parts:
        if part.name in gone and part.name:
            _check_sure(part)
        elif part.name or not (plain or part.words[0] in gone):
            kept += part.words
    end = kept.index("--") if "--" in kept else len(kept)
    return [*kept[:end], *new, *kept[end:]]


def _dropped(name: str, parts: Sequence[_Part], known: ScriptOptions) -> set[str]:
    """Names, or plain words, that go with `name`."""
    spellings = known.spellings(name.partition("=")[0] if name.startswith("-") else name)
    for part in parts:
        if (part.name and part.name in spellings) or (not part.name and part.words[0] == name):
            return {*spellings, name}
    given = sorted({part.name or part.words[0] for part in parts})
    raise UsageError(
        f"--drop {name}: the run has no such argument. It has: {' '.join(given) or 'none'}."
    )


def _check_sure(part: _Part) -> None:
    if part.unsure:
        raise UsageError(
            f"{part.name} is followed by {' '.join(part.words[1:])}, and the script does not say "
            "which of these are its values. Give all arguments again: workbench resume RUN --drop "
            f"'{ALL}' -- ARGS…"
        )


def _parts(words: Sequence[str], known: ScriptOptions) -> Iterator[_Part]:
    """The words, each option with its values."""
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            yield from (_Part(name="", words=(one,)) for one in words[at:])
            return
        if not is_option(word):
            keyed = _KEYED.match(word)
            yield _Part(name=keyed[0].lstrip("+~") if keyed else "", words=(word,))
            at += 1
            continue
        name, equals, _ = word.partition("=")
        if not equals and known.of(name) is None and _glued(name, known):
            name, equals = name[:2], "="
        following = 0 if equals else _values(words[at + 1 :])
        option = known.of(name)
        taken, unsure = _taken(option, following, known.positionals)
        yield _Part(name=name, words=tuple(words[at : at + 1 + taken]), unsure=unsure)
        at += 1 + taken


def _glued(word: str, known: ScriptOptions) -> bool:
    """``-n5``: a short option with its value in one word."""
    return not word.startswith("--") and len(word) > 2 and word[:2] in known.by_name


def _taken(
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

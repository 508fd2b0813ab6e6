"""`Format`: all that is known of how one trainer writes its configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from workbench.trainer_configs.document import Document
from workbench.trainer_configs.limits import Companion, Impossible
from workbench.trainer_configs.rules import Rule

Syntax = Literal["arguments", "yaml", "toml", "json"]


def _as_it_is(document: Document) -> None:
    """Nothing to spell again."""
    del document


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rules whose keys one file of the trainer's repository declares."""

    source: str
    """Repository, file and release in which the keys can be read."""
    rules: tuple[Rule, ...]
    """In the order in which they are read: a later one may depend on an earlier one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How one trainer writes its configuration."""

    trainer: str
    """Name of the trainer, as ``--trainer`` takes it."""
    other_trainers: tuple[str, ...] = ()
    """Trainers that take the same keys."""
    syntax: Syntax
    """How the file that is written looks; any that holds the keys is read."""
    file: str
    """Name of the file that is written."""
    groups: tuple[Group, ...]
    """The mapping."""
    signatures: tuple[tuple[str, ...], ...]
    """Sets of keys; a file that has all of one set is of this trainer."""
    command: str
    """What to type; {file}, {gpus}, {nodes}, {world} and {recipe} are filled in."""
    recipes: tuple[tuple[str, Mapping[str, object]], ...] = ()
    """What {recipe} is: the first whose fields the job has."""
    assumed: Mapping[str, object] = field(default_factory=dict[str, object])
    """Fields that no key says, since the trainer does not know any other value."""
    script: str = "train.py"
    """arguments: the script that takes them."""
    dashes: bool = False
    """arguments: whether words of a name are joined by "-"."""
    parsed_by: str = ""
    """The package whose own parser reads what is written, in the tests; "" = none is installed."""
    documents: Mapping[str, str] = field(default_factory=dict[str, str])
    """Key that names a file of its own -> the name of that file."""
    completed: Mapping[str, object] = field(default_factory=dict[str, object])
    """Dotted key in such a file -> the value that it has besides, where the file is written."""
    conflicts: tuple[tuple[str, str], ...] = ()
    """Pairs of keys of which only one may be on."""
    agreeing: Mapping[str, str] = field(default_factory=dict[str, str])
    """Key -> another key that must have the same value, unless one is "auto" or not there."""
    adapters: Mapping[str, tuple[object, ...]] = field(
        default_factory=dict[str, "tuple[object, ...]"]
    )
    """Key of an adapter method -> the values that can be estimated; any other is refused."""
    objectives: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, "tuple[str, ...]"])
    """Key -> patterns of values with which it learns from preferences or rewards, or from a second
    model; those are refused, since only next-token training is estimated."""
    harmless: tuple[str, ...] = ()
    """Patterns of keys that look as if they mattered for memory or time, and do not."""
    fixed: Mapping[str, object] = field(default_factory=dict[str, object])
    """Keys that every file has, whatever the job."""
    outside: frozenset[str] = frozenset()
    """Fields that the script decides, not this file."""
    lacks: Mapping[str, str] = field(default_factory=dict[str, str])
    """Field -> why the trainer cannot express it, as the end of a sentence."""
    impossible: tuple[Impossible, ...] = ()
    """What its own checks refuse, which is not written."""
    companions: tuple[Companion, ...] = ()
    """Keys that it wants beside others."""
    environment: tuple[Companion, ...] = ()
    """Variables that the script sets; of a file: that stand before the command."""
    unread: Mapping[str, str] = field(default_factory=dict[str, str])
    """Key of a degree or switch -> why no job says it, as the end of a sentence; above 1, or on, it
    is refused."""
    note: str = ""
    """A sentence beside every file that is written."""
    each_node: str = (
        "start it on each, with torchrun's --node-rank, --master-addr and --master-port"
    )
    """What has to be done where there are several machines."""
    left_open: str = "data, learning rate, number of steps"
    """What the file does not decide."""
    spell_anew: Callable[[Document], None] = _as_it_is
    """Gives keys of older releases their present names, before they are read."""

    @property
    def keys(self) -> frozenset[str]:
        """All that its rules and fixed keys name."""
        return frozenset({*self.fixed, *(key for rule in self.rules for key in rule.all_keys)})

    @property
    def rules(self) -> tuple[Rule, ...]:
        """All of them."""
        return tuple(rule for group in self.groups for rule in group.rules)

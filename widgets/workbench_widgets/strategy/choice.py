"""What the strategy picker's controls say, as one frozen value; builds the engine's `Strategy`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import workbench as wb
from workbench.describe.checks import require_choice, require_positive
from workbench.describe.library_options import Scope
from workbench.describe.option import declared
from workbench.describe.strategy import NAMES
from workbench.describe.supported import scopes
from workbench_widgets.form import Form
from workbench_widgets.options import refuse_unknown

PARTS = declared(wb.Strategy)["offload"].option.choices
OFFLOADS = {
    "none": (),
    "optimizer": ("optimizer",),
    "optimizer, parameters": ("optimizer", "parameters"),
    "activations": ("activations",),
    "optimizer, activations": ("optimizer", "activations"),
    ", ".join(PARTS): PARTS,
}
HAND = "hand"
DEGREES = "degrees"
FAMILIES = (*NAMES, DEGREES)
AXES = {"pp": "pp", "dp": "dp_replicate", "fsdp": "dp_shard", "cp": "cp", "tp": "tp"}
"""Control -> field of `Strategy`, outermost first; the word is the one in a strategy's name."""
DEFAULT = "default"
THREE = {DEFAULT: None, "yes": True, "no": False}
"""What a control of `THREE_WAY` says."""
_FSDP = ("fsdp", "fsdp-grad-op", "hsdp")
_ZERO = ("zero1", "zero2", "zero3")
_KINDS = {"ddp": "ddp", "fsdp": "fsdp", "deepspeed": "zero"}


def _readers(scope: Scope) -> set[str]:
    """What must be at work for an option of that scope to matter."""
    if scope.needs is not None:
        field, value = scope.needs
        return {f"zero{value}" if field == "zero_stage" else str(value)}
    return {scope.axis} if scope.axis else {_KINDS[backend] for backend in scope.set_by}


_WHERE: dict[str, set[str]] = {
    "engine": {"fsdp", "zero1"},
    **{name: _readers(scope) for name, scope in scopes().items() if scope.set_by},
    "offload_device": {"zero3-offload"},
    "reshard_after_forward": {"reshard"},
    "sync_every_micro_batch": {"ddp", "fsdp"},  # each ZeRO stage does one or the other
}
"""Control -> what must be at work for it to matter; the others always do."""
OPTIONS = ("recompute", *_WHERE)
"""Controls that are options of a `Strategy` under the same name."""
DECLARED = {name: field for name, field in declared(wb.Strategy).items() if name in OPTIONS}
"""Those of them that the command line has too."""
_NUMBERS = ("wrap_min_parameters", "reduce_bucket", "gather_bucket", "live_parameters")
THREE_WAY = (
    "overlap_gradients",
    *(name for name, field in DECLARED.items() if field.is_switch and field.default is None),
)
"""Options that a library decides when nothing else sets them."""
_NONE = {"comm_hook": "none"}  # the word that stands for None, where it is not DEFAULT


def _to_control(name: str, setting: Any) -> Any:
    """A value of `Strategy` as its control says it."""
    if name == "offload":
        return next(
            (word for word, parts in OFFLOADS.items() if parts == setting), ", ".join(setting)
        )
    if name in THREE_WAY:
        return next(word for word, value in THREE.items() if value is setting)
    if setting is None and name in DECLARED and DECLARED[name].option.choices:
        return _NONE.get(name, DEFAULT)
    return setting


_PLAIN = wb.Strategy(name=wb.Strategy.usual(1)).options()
_RANKS = 2  # of the first strategy that is shown: several, so that there is something to spread
FIELDS: dict[str, Any] = {
    "goal": HAND,
    "family": wb.Strategy.usual(_RANKS),
    "processes": _RANKS,
    **dict.fromkeys(AXES, 1),
    **{name: _to_control(name, _PLAIN[name]) for name in OPTIONS},
}
"""Every control and its first value."""


@dataclass(frozen=True, slots=True)
class StrategyChoice(Form):
    """One setting of all controls. Values are checked when the strategy is built."""

    FACE = "StrategyPicker"
    FIRST = FIELDS

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> StrategyChoice:
        """Build from keyword arguments: the controls' names, and ``strategy`` for a name or value.

        Raises:
            TypeError: an unknown option.
            UsageError: a strategy that the controls cannot say.
        """
        allowed = (*FIELDS, "strategy")
        refuse_unknown(cls.FACE, options, allowed)
        if not {"strategy", "family"} & set(options) and isinstance(options.get("processes"), int):
            options = {"strategy": wb.Strategy.usual(options["processes"]), **options}
        return cls().with_options(options)

    def with_options(self, options: Mapping[str, Any]) -> StrategyChoice:
        """The choice with these controls set, ``strategy`` first: it sets several.

        Raises:
            UsageError: a strategy that the controls cannot say, or that has other ranks.
        """
        others = dict(options)
        strategy = others.pop("strategy", None)
        choice = self
        if isinstance(strategy, wb.Strategy):
            choice = choice.taking(strategy)
        elif strategy is not None:
            choice = choice.named(str(strategy), others.get("processes"))
        return choice.changed(others)

    def named(self, text: str, processes: int | None) -> StrategyChoice:
        """By hand, as a name says it: ``fsdp``, or degrees such as ``pp2-dp2-tp2``."""
        name = text.strip().lower()
        if name in NAMES:
            many = 1 if name == "single" else processes or max(2, self["processes"])
            return self.changed({"goal": HAND, "family": name, "processes": many})
        ranks = processes or wb.Strategy.ranks_of(name) or 1
        return self.taking(wb.Strategy.parse(name, ranks))

    def taking(self, strategy: wb.Strategy) -> StrategyChoice:
        """By hand, exactly this strategy. Raises UsageError: it has an option without a control."""
        options = strategy.options()
        values = {name: _to_control(name, options[name]) for name in OPTIONS}
        family = _family(strategy)
        degrees = dict.fromkeys(AXES, 1)
        if family == DEGREES:
            degrees = {word: getattr(strategy, field) for word, field in AXES.items()}
        else:
            values["reshard_after_forward"] = True  # the family says it
        layout = {"goal": HAND, "family": family, "processes": strategy.world_size}
        choice = self.changed({**layout, **values, **degrees})
        _check_same(strategy, choice.strategy())
        return choice

    def strategy(self) -> wb.Strategy:
        """The strategy that the controls say by hand. Raises UsageError: it cannot be."""
        require_choice("family", self["family"], FAMILIES)
        if self["family"] == DEGREES:
            for word in AXES:
                require_positive(word, self[word])
            many = {word: self[word] for word in AXES}
            name = "-".join(f"{word}{count}" for word, count in many.items() if count > 1)
            base = wb.Strategy.parse(name or "single", math.prod(many.values()))
        else:
            require_positive("processes", self["processes"])
            ranks = 1 if self["family"] == "single" else self["processes"]
            base = wb.Strategy.parse(self["family"], ranks)
        return base.with_options(**self._options(base))

    def _options(self, base: wb.Strategy) -> dict[str, Any]:
        """Options that matter here and differ from the default."""
        hidden = set(self.hidden())
        options: dict[str, Any] = {}
        for name in OPTIONS:
            if name not in hidden and self[name] != FIELDS[name]:
                options[name] = _from_control(name, self[name])
        if base.fsdp.reshard_after_forward is False:
            options.pop("reshard_after_forward", None)
        return options

    def hidden(self) -> list[str]:
        """Controls without effect as the others stand; their values wait."""
        if self["goal"] != HAND:
            return [name for name in FIELDS if name not in {"goal", "processes"}]
        return [name for name in FIELDS if not self._matters(name)]

    def _matters(self, name: str) -> bool:
        by_degrees = self["family"] == DEGREES
        if name == "processes":
            return self["family"] not in {"single", DEGREES}
        if name in AXES:
            return by_degrees
        strategy_kinds = _WHERE.get(name)
        return strategy_kinds is None or bool(strategy_kinds & self._kinds())

    def _kinds(self) -> set[str]:
        """What is at work: one word per library and axis."""
        kinds: set[str] = set()
        if self["family"] == DEGREES:
            kinds |= {axis for axis in ("pp", "cp", "tp") if _above_one(self[axis])}
            split = bool(kinds)
            if _above_one(self["fsdp"]):
                kinds |= {"fsdp-split"} if split else {"fsdp", "reshard"}
            elif _above_one(self["dp"]) and not split:
                kinds.add("ddp")
        elif self["family"] in _FSDP:
            kinds.add("fsdp")
            kinds |= {"reshard"} if self["family"] == "hsdp" else set()
        elif self["family"] in _ZERO:
            kinds |= {"ddp" if self["engine"] == "torch" else "zero", self["family"]}
        else:
            kinds.add(self["family"])
        if self["engine"] == "fsdp1":
            kinds.add("fsdp1")
        if self["family"] == "zero3" and self["offload"] != "none":
            kinds.add("zero3-offload")
        return kinds


def _above_one(degree: object) -> bool:
    return isinstance(degree, int) and degree > 1


def _from_control(name: str, value: Any) -> Any:
    """A control's value as `Strategy` has it."""
    if name == "offload":
        require_choice("offload", str(value), tuple(OFFLOADS))
        return OFFLOADS[value]
    if name in THREE_WAY:
        require_choice(name, str(value), tuple(THREE))
        return THREE[value]
    if name in _NUMBERS:
        require_positive(name, value)
    return value


def _family(strategy: wb.Strategy) -> str:
    if strategy.name in NAMES:
        return strategy.name
    sharded = strategy.world_size == strategy.dp_shard
    if strategy.zero_stage is not None and sharded:
        return f"zero{strategy.zero_stage}"
    return DEGREES


def _check_same(strategy: wb.Strategy, from_controls: wb.Strategy) -> None:
    """Refuse what the controls would leave out."""
    parts = from_controls.recompute_parts  # they count with selective recompute alone
    alike = (
        strategy
        if strategy.recompute == "selective"
        else strategy.with_options(recompute_parts=parts)
    )
    controlled = from_controls.options()
    for name, value in alike.options().items():
        if name != "name" and value != controlled[name]:
            raise wb.UsageError(
                f"{strategy.name}: no control sets {name.replace('_', ' ')} {value!r}. "
                "Use wb.launch(..., strategy=...)."
            )

"""`Job`: what is trained, how it is spread and where, as one value with one set of options.

Each option is declared once, as a field of `Workload`, `ImplementationAssumptions`, `Strategy` (or
of one of its libraries' options) or `Placement`, with its type, default, choices and help. `Job.of`
takes them by name; the command line and the calculators' controls are derived from them
(`options`), so every face gives the same answer.

>>> job = Job.of("llama-3-8b", gpu="h100", gpus=8, strategy="fsdp", seq_len=4096)
>>> job.strategy.dp_shard, job.workload.precision, job.cluster.world_size
(8, 'bf16', 8)
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from workbench.describe.checks import require_choice
from workbench.describe.hardware import Cluster
from workbench.describe.implementation import KERNELS, ImplementationAssumptions
from workbench.describe.model import Model, usual_seq_len
from workbench.describe.named_model import read_model
from workbench.describe.needed import needs_layout, of_job, sentence, unmet
from workbench.describe.option import DeclaredField, Option, declared, flat_names
from workbench.describe.other_names import unknown_option
from workbench.describe.placement import Placement, machine_note, precision_there
from workbench.describe.recorded import from_document
from workbench.describe.shown import changed_fields
from workbench.describe.strategy import DEGREES, Strategy
from workbench.describe.supported import check_options, ignored
from workbench.describe.trainers import Preset, preset
from workbench.describe.trainers.preset import facts
from workbench.describe.workload import Workload
from workbench.errors import UsageError

MODEL = DeclaredField(
    name="model",
    type=str,
    default=None,
    option=Option(help="Catalog name, or a config.json or its folder.", metavar="M"),
)
STRATEGY = DeclaredField(
    name="strategy",
    type=str | None,
    default=None,
    option=Option(help="single, ddp, fsdp, zero3, dp2-tp2 … [default: single or ddp]."),
)
PRESET = DeclaredField(
    name="kernels",
    type=str,
    default="transformers",
    option=Option(help="transformers, fused, compiled, megatron.", choices=tuple(KERNELS)),
)
OF_PRESET = frozenset(
    name
    for name in declared(ImplementationAssumptions)
    if len({str(getattr(preset, name)) for preset in KERNELS.values()}) > 1
)
"""What a preset of kernels decides; another preset decides it again."""
TRAINER = DeclaredField(
    name="trainer",
    type=str | None,
    default=None,
    option=Option(
        help="What trains, whose defaults are assumed: torchtune, litgpt@0.5, trl …",
        metavar="NAME[@RELEASE]",
    ),
)


_OF_A_LAYOUT = frozenset(
    {
        *("name", "zero_stage", "engine", "sequence_parallel", "reshard_after_forward", "offload"),
        *("recompute", "recompute_parts", "recompute_layers", "schedule", "virtual_stages"),
        *DEGREES,
    }
)
"""Options of a strategy by which a plan's layouts differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One training job: estimates, plans and launches take it and give it back."""

    workload: Workload
    """What."""
    strategy: Strategy
    """How."""
    cluster: Cluster | str
    """Where; a device's name (``cpu``, ``cuda``) where no card is known."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """What was assumed of the trainer, and while a model's config was read."""
    trainer: Preset | None = field(default=None, compare=False)
    """What trains and what it decided of this job; None = not known."""
    given: Mapping[str, Any] = field(default_factory=dict[str, Any], compare=False, repr=False)
    """Options that were given to `of`."""
    __repr__ = changed_fields

    @classmethod
    def of(cls, model: str | Path | Model, **values: Any) -> Job:
        """Describe a job by its options.

        Args:
            model: A name of the catalog, a config.json or its folder, or a `Model`.
            values: Any of `options()`, by name. Several words may be one text with commas.

        Raises:
            UnknownNameError: no such option, or a word that is not allowed.
            UsageError: an impossible value; the message says what is allowed.
        """
        return cls.from_options(model, values, typed=values)

    @classmethod
    def from_options(
        cls,
        model: str | Path | Model,
        values: Mapping[str, Any],
        typed: Collection[str],
        *,
        layout_is_open: bool = False,
    ) -> Job:
        """As `of`, where a person gave the options in `typed` alone; a plan may choose the layout.

        Of the others, which a file or an earlier job has, those without effect are left out.

        Raises:
            UnknownNameError: as `of`.
            UsageError: as `of`; or a typed option changes nothing.
        """
        described, notes = (model, ()) if isinstance(model, Model) else read_model(model)
        job = cls._described(described, notes, values)
        option_names = [name for name, value in values.items() if value is not None]
        if layout_is_open:
            option_names = [name for name in option_names if not needs_layout(name)]
        check_options(job.strategy, [name for name in option_names if name in typed])
        facts = of_job(described, job.workload, job.strategy)
        idle = unmet([name for name in option_names if name in facts], facts)
        for name in idle:
            if name in typed:
                raise UsageError(sentence(name, facts, job.strategy.name))
        idle += ignored(job.strategy, option_names)
        if not idle:
            return job
        left = {name: value for name, value in values.items() if name not in idle}
        return cls._described(described, notes, left)

    @classmethod
    def _described(cls, described: Model, notes: tuple[str, ...], values: Mapping[str, Any]) -> Job:
        check_names(values)
        parsed = {name: options()[name].read(value) for name, value in values.items()}
        strategy, placement = _spread(parsed)
        cluster = placement.cluster()
        trainer, assumed = _assumed(described, strategy, _arch(cluster), parsed)
        chosen = (assumed | parsed).get("precision")
        converted, conversion = precision_there(cluster, chosen, default("precision"))
        assumed |= converted
        extra = {name: value for name, value in assumed.items() if name in flat_names(Strategy)}
        return cls(
            workload=_workload(described, assumed | parsed),
            strategy=strategy.with_options(**extra),
            cluster=cluster,
            notes=(*machine_note(cluster), *conversion, *_assumed_note(trainer, described), *notes),
            trainer=trainer,
            given=dict(values),
        )

    def with_trainer(self, name: str | None) -> Job:
        """The same job as another trainer runs it; what was given still counts.

        >>> Job.of("gpt2", gpu="h100").with_trainer("torchtune").workload.precision
        'bf16-pure'
        """
        changed_options = {**self.given, "trainer": name}
        return Job.from_options(self.workload.model, changed_options, typed=("trainer",))

    def in_layout(self, strategy: Strategy, arch: str = "") -> tuple[Workload, dict[str, Any]]:
        """The workload as its named trainer runs it in another layout, on a generation of GPUs.

        Beside it, by name, what the trainer does there that is no part of a layout.
        """
        if not self.has_named_trainer:
            return self.workload, {}
        model = self.workload.model
        parsed = {name: options()[name].read(value) for name, value in self.given.items()}
        parsed |= {"strategy": None}
        _, assumed = _assumed(model, strategy, arch, parsed)
        workload = _workload(model, assumed | parsed)
        own = set(flat_names(Strategy)) - _OF_A_LAYOUT - set(parsed)
        return (
            replace(workload, calibration=self.workload.calibration),
            {name: value for name, value in assumed.items() if name in own},
        )

    def changed(self, **values: Any) -> Job:
        """The same job with other options; its trainer decides again what they leave open.

        None leaves an option out that was given. A calibration stays, and the cluster too unless
        one of its options is among the values. ``model=`` makes it a job of another model.

        >>> job = Job.of("llama-3-8b", gpu="h100", trainer="trl", optimizer="sgd")
        >>> job.changed(lora_rank=16).workload.loss, job.changed(optimizer=None).workload.optimizer
        ('full', 'adamw-fused')

        Raises:
            UnknownNameError: no such option.
            UsageError: the job was not described by options (`of`), or the change is impossible.
        """
        if not self.given:
            raise UsageError(
                "This job was not described by options, so none can be changed. Describe it with "
                "wb.Job.of(model, gpu=..., ...), or replace its workload or strategy."
            )
        changed_options = {
            name: value for name, value in {**self.given, **values}.items() if value is not None
        }
        model = changed_options.pop(MODEL.name, self.workload.model)
        job = Job.from_options(model, changed_options, typed=values)
        calibrated = replace(job.workload, calibration=self.workload.calibration)
        moved = not values.keys().isdisjoint(declared(Placement))
        return replace(job, workload=calibrated, cluster=job.cluster if moved else self.cluster)

    def with_notes(self, *notes: str) -> Job:
        """With further notes on how it was read."""
        return replace(self, notes=(*self.notes, *notes))

    @property
    def has_named_trainer(self) -> bool:
        """Whether someone, or the script by its imports, says what trains."""
        return self.trainer is not None and (self.trainer.is_named or self.trainer.is_imported)

    @property
    def launched(self) -> Strategy:
        """The strategy as it was given: what its trainer does by itself is not told to a library.

        >>> job = Job.of("gpt2", gpu="h100", gpus=8, strategy="ddp", trainer="trl")
        >>> job.strategy.recompute, job.launched.recompute
        ('full', 'none')
        """
        if self.trainer is None or not self.trainer.is_named:
            return self.strategy
        own = self.with_trainer(None).strategy.options()
        assumed = {assumption.field for assumption in self.trainer.assumptions} & set(own)
        return self.strategy.with_options(**{name: own[name] for name in assumed})

    @classmethod
    def recorded(cls, run: Mapping[str, Any]) -> Job:
        """The job of a run, from its run.json, which may be one of another version.

        Raises:
            UsageError: the record does not say what was trained, or not in a way that is read here.
        """
        if not run:
            raise UsageError("The record of the run is gone or cannot be read.")
        name, workload = run.get("run", "The run"), run.get("workload")
        if not isinstance(workload, Mapping):
            raise UsageError(
                f"{name} has no description of its model: {run.get('script', 'its script')} was "
                "launched without a job. Give one at the launch: wb.launch(script, job=job)."
            )
        try:
            return cls(
                workload=from_document(Workload, cast("Mapping[str, Any]", workload)),
                strategy=Strategy.recorded(run["strategy"]),
                cluster=_recorded_cluster(run),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UsageError(f"The record of {name} does not describe its job: {error}") from error


def _arch(cluster: Cluster | str) -> str:
    """The generation of its cards; "" where none is known."""
    card = cluster.accelerator if isinstance(cluster, Cluster) else None
    return card.arch if card else ""


def _assumed_note(trainer: Preset, model: Model) -> tuple[str, ...]:
    """What is assumed of the trainer; a measured step shows by itself what trained it."""
    notes = () if model.measured is not None and not trainer.is_named else (trainer.note,)
    if model.mlm_head:
        other = "its head predicts masked tokens; -classifier behind its name classifies sequences"
        notes += (f"{model.name}: {other}.",)
    return notes


def _recorded_cluster(run: Mapping[str, Any]) -> Cluster | str:
    """Where; a device's name where no card is known."""
    if run.get("device") == "cpu":
        return "cpu"
    cluster = from_document(Cluster, run["cluster"])
    return cluster if cluster.gpus else "cuda"


@functools.cache
def options() -> Mapping[str, DeclaredField]:
    """Every option of a job by name, in the order in which help texts list them."""
    kinds = (declared(kind) for kind in (Placement, Workload, Strategy, ImplementationAssumptions))
    placement, work, layout, implementation = kinds
    return MappingProxyType(
        {"model": MODEL, **placement, "strategy": STRATEGY, "trainer": TRAINER, **work, **layout}
        | {"kernels": PRESET, **implementation}
    )


def default(name: str) -> Any:
    """Default of an option; None where it follows from the others."""
    value = options()[name].default
    return None if value is MISSING else value


def check_names(values: Mapping[str, Any]) -> None:
    """Refuse options that no job has.

    Raises:
        UnknownNameError: one of them is unknown; the message has near ones.
    """
    for name in values:
        if name not in options():
            raise unknown_option("option of a job", name, options())


def _of(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the values that are fields of `kind`, without the ones left to their default."""
    return {name: values[name] for name in declared(kind) if values.get(name) is not None}


def _spread(parsed: Mapping[str, Any]) -> tuple[Strategy, Placement]:
    """How and where: the strategy's name may say the number of GPUs, or the GPUs the strategy."""
    name = parsed.get("strategy")
    if isinstance(name, Strategy):
        own: dict[str, Any] = {"gpus": name.world_size, **_of(Placement, parsed)}
        placement = Placement(**own)
        strategy = name
    else:
        placement = Placement(**_of(Placement, parsed)).sized(name)
        world = placement.world_size
        name = Strategy.usual(world) if name is None else str(name)
        needed = Strategy.ranks_of(name)
        strategy = Strategy.parse(name, world if needed is None or needed == 1 else needed)
        if strategy.name == "hsdp" and placement.nodes > 1:  # a group of shards in each node
            degrees = {"dp_replicate": placement.nodes, "dp_shard": world // placement.nodes}
            strategy = strategy.with_options(**degrees)
    if strategy.world_size != placement.world_size:
        raise UsageError(
            f"{strategy.name} needs {strategy.world_size} GPUs, not {placement.world_size} "
            f"({placement.nodes} x {placement.gpus}). {_other_degrees(strategy, placement)}"
        )
    return strategy.with_options(**_of(Strategy, parsed)), placement


def _other_degrees(strategy: Strategy, placement: Placement) -> str:
    """What makes the layout and the GPUs agree."""
    times, rest = divmod(placement.world_size, strategy.world_size)
    usual = "Change gpus, nodes or a degree."
    if rest or strategy.data_ranks > 1:
        return usual
    try:
        wider = Strategy.parse(f"fsdp{times}-{strategy.name}", placement.world_size)
    except UsageError:  # its name says no degree: tp
        return usual
    return f"For all of them: {wider.name} or dp{times}-{strategy.name}."


def _assumed(
    model: Model, strategy: Strategy, arch: str, parsed: Mapping[str, Any]
) -> tuple[Preset, dict[str, Any]]:
    """The trainer, and by name what it decides of what was left open."""
    trainer = preset(parsed.get("trainer"))
    decided = {name for name, value in parsed.items() if value is not None}
    kernels = parsed.get("kernels")
    if isinstance(kernels, ImplementationAssumptions):
        decided |= set(declared(ImplementationAssumptions))
    elif kernels is not None:
        decided |= {"norm", "activation", "compiled"}
    if isinstance(requested := parsed.get("strategy"), Strategy):
        decided |= set(requested.options_beside_name())
    assumptions = trainer.assumed(facts(strategy, model, parsed, arch), model, strategy)
    undecided = {
        name: assumption for name, assumption in assumptions.items() if name not in decided
    }
    trainer = replace(trainer, assumptions=tuple(undecided.values()))
    return trainer, {name: assumption.value for name, assumption in undecided.items()}


def _workload(model: Model, parsed: Mapping[str, Any]) -> Workload:
    values = _of(Workload, parsed)
    values.setdefault("seq_len", usual_seq_len(model))
    return Workload(model=model, kernels=_kernels(parsed), **values)


def _kernels(parsed: Mapping[str, Any]) -> ImplementationAssumptions:
    preset = PRESET.default if parsed.get("kernels") is None else parsed["kernels"]
    if isinstance(preset, ImplementationAssumptions):
        return preset
    require_choice(PRESET.title, preset, PRESET.option.choices)
    return replace(KERNELS[preset], **_of(ImplementationAssumptions, parsed))

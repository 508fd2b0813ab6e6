"""What the memory calculator's controls say, as one frozen value; builds the engine's objects."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import workbench as wb
from workbench.describe import catalog
from workbench.describe.checks import require_choice, require_positive
from workbench.describe.job import Job, default, options
from workbench.describe.placement import Placement
from workbench.describe.workload import usual_seq_len
from workbench_widgets.options import refuse_unknown

SHARDED = ("fsdp", "fsdp-grad-op", "zero1", "zero2", "zero3")
COMBINED = ("ddp", *SHARDED)
"""Strategies that leave room for tensor, pipeline and context parallelism beside them."""
ALONE = ("tp", "pp", "cp")
STRATEGIES = ("single", "ddp", "fsdp", "fsdp-grad-op", "hsdp", "zero1", "zero2", "zero3", *ALONE)
LORA_TARGETS = {"q, v": ("q", "v"), "all linear": ("q", "k", "v", "o", "gate", "up", "down")}
PARTS = options()["offload"].option.choices
OFFLOADS = {
    "none": (),
    "optimizer": ("optimizer",),
    "optimizer, parameters": ("optimizer", "parameters"),
    "activations": ("activations",),
    "optimizer, activations": ("optimizer", "activations"),
    ", ".join(PARTS): PARTS,
}
RECOMPUTES: dict[str, dict[str, Any]] = {
    "none": {"recompute": "none"},
    "selective": {"recompute": "selective", "recompute_parts": ("attention",)},
    "mlp": {"recompute": "selective", "recompute_parts": ("mlp",)},
    "op": {"recompute": "selective", "recompute_parts": ("op",)},
    "full": {"recompute": "full"},
}

_ONE = Placement()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryChoice:
    """One setting of all controls. Values are checked when the engine's objects are built."""

    model: str = "llama-3.2-1b"
    """Catalog name, or the path of a ``config.json``."""
    gpu: tuple[str, ...] = ("h100-sxm",)
    """Catalog names; the first is the one to train on, the others are compared with it."""
    gpus: int = _ONE.world_size
    """GPUs per node."""
    nodes: int = default("nodes")
    """Equal machines."""
    strategy: str = wb.Strategy.usual(_ONE.world_size)
    """One of `STRATEGIES`."""
    tp: int = 1
    """Tensor-parallel degree beside the strategy."""
    pp: int = 1
    """Pipeline stages beside the strategy."""
    cp: int = 1
    """Context-parallel degree beside the strategy."""
    ep: int = 1
    """Expert-parallel degree (mixture of experts only)."""
    schedule: str = default("schedule")
    """Pipeline schedule."""
    sequence_parallel: bool = default("sequence_parallel")
    """Tensor parallelism splits norms and residuals along the sequence too."""
    precision: str = default("precision")
    """Numbers of weights and arithmetic."""
    optimizer: str = default("optimizer")
    """Optimizer and the implementation of its step."""
    recompute: str = default("recompute")
    """A key of `RECOMPUTES`: activation checkpointing."""
    lora_rank: int = default("lora_rank")
    """0 = all weights are trained."""
    lora_targets: str = ", ".join(default("lora_targets"))
    """A key of `LORA_TARGETS`."""
    quantization: str = default("quantization")
    """Storage of frozen weights."""
    attention: str = default("attention")
    """Whether the scores are kept."""
    loss: str = default("loss")
    """How the logits are made."""
    kernels: str = default("kernels")
    """A key of ``KERNELS``: which intermediate results the implementation keeps."""
    offload: str = next(iter(OFFLOADS))
    """A key of `OFFLOADS`: what lives in host memory."""
    expandable_segments: bool = default("expandable_segments")
    """The allocator's setting against fragmentation."""
    optimizer_in_backward: bool = default("optimizer_in_backward")
    """Each gradient is applied and freed at once."""
    bucket_views: bool = default("bucket_views")
    """DDP: gradients are views into the buckets."""
    micro_batch: int = default("micro_batch")
    """Sequences per forward pass and GPU."""
    seq_len: int | None = None
    """Tokens per sequence; None = as many as are usual for the model."""
    accumulate: int = default("accumulate")
    """Micro-batches per optimizer step."""

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> MemoryChoice:
        """Build from the constructor's keyword arguments.

        Raises:
            TypeError: an unknown option.
            UsageError: a strategy name whose degrees do not multiply to the GPUs.
        """
        unknown = {name: value for name, value in options.items() if name not in FIELDS}
        refuse_unknown("MemoryCalculator", unknown, FIELDS)
        given = dict(options)
        if "gpu" in given:
            cards = (given["gpu"],) if isinstance(given["gpu"], str) else given["gpu"]
            given["gpu"] = tuple(dict.fromkeys(catalog.gpu(card).id for card in cards))
        if "model" in given:
            given["model"] = model_name(str(given["model"]))
        choice = cls(**{name: value for name, value in given.items() if name != "strategy"})
        if "seq_len" not in given:
            choice = dataclasses.replace(choice, seq_len=_usual_seq_len(choice.model))
        if "strategy" in given:
            return choice._with_strategy(str(given["strategy"]))  # noqa: SLF001
        return dataclasses.replace(choice, strategy=wb.Strategy.usual(choice.cards))

    def changed(self, changes: Mapping[str, Any]) -> MemoryChoice:
        """The choice after somebody has moved some controls; unknown names are left out."""
        known = {name: value for name, value in changes.items() if name in FIELDS}
        if "gpu" in known:
            given = known["gpu"] if isinstance(known["gpu"], list | tuple) else [known["gpu"]]
            known["gpu"] = tuple(dict.fromkeys(map(gpu_name, map(str, given))))
        if "model" in known:
            known["model"] = model_name(str(known["model"]))
        return dataclasses.replace(self, **known)

    def _with_strategy(self, text: str) -> MemoryChoice:
        """Take a name of ours, or one with degrees such as ``fsdp4-tp2``."""
        name = text.strip().lower()
        if "-" not in name or name in STRATEGIES:
            return dataclasses.replace(self, strategy=name)
        layout = wb.Strategy.parse(name, self.cards)
        base = "ddp"
        if layout.zero_stage:
            base = f"zero{layout.zero_stage}"
        elif layout.dp_shard > 1:
            base = "fsdp"
        degrees = {degree: getattr(layout, degree) for degree in (*ALONE, "ep")}
        return dataclasses.replace(self, strategy=base, **degrees)

    @property
    def cards(self) -> int:
        """GPUs of all nodes."""
        return self.gpus * self.nodes

    def document(self) -> dict[str, Any]:
        """Plain values for the front end."""
        return {**dataclasses.asdict(self), "gpu": list(self.gpu)}

    def shape(self) -> wb.Model:
        """The model.

        Raises:
            UsageError: not in the catalog, or no readable ``config.json``.
        """
        return model_of(self.model)

    def job(self) -> Job:
        """What, how and where.

        Raises:
            UsageError: a control says something that cannot be; the message says what is allowed.
        """
        if not self.gpu:
            raise wb.UsageError("Choose a GPU: its memory determines what fits.")
        return self._job(self._layout())

    def workload(self) -> wb.Workload:
        """What is trained.

        Raises:
            UsageError: a value that the engine does not have.
        """
        return self._job("single", gpus=1, nodes=1).workload

    def layout(self) -> wb.Strategy:
        """How it is spread.

        Raises:
            UsageError: degrees that do not fit the number of GPUs.
        """
        return self.job().strategy

    def cluster(self) -> wb.Cluster:
        """Where it runs: the first GPU.

        Raises:
            UsageError: no GPU, or one that the catalog does not have.
        """
        cluster = self.job().cluster
        assert isinstance(cluster, wb.Cluster), "a GPU was chosen"
        return cluster

    def _job(self, strategy: str | wb.Strategy, **more: Any) -> Job:
        model = self.shape()
        for name, value in self.document().items():
            if value is None:
                raise wb.UsageError(f"{name} is empty. Enter a whole number.")
        tables = {"lora_targets": LORA_TARGETS, "offload": OFFLOADS, "recompute": RECOMPUTES}
        for name, table in tables.items():
            require_choice(name, getattr(self, name), tuple(table))
        values: dict[str, Any] = {name: getattr(self, name) for name in _SAME}
        values |= {"gpu": self.gpu[0] if self.gpu else None, "strategy": strategy}
        values |= {"lora_targets": LORA_TARGETS[self.lora_targets]}
        values |= RECOMPUTES[self.recompute] | {"offload": OFFLOADS[self.offload]}
        hidden = {*self.hidden()} - {"lora_targets"}  # which say nothing without a rank
        values = {name: value for name, value in values.items() if name not in hidden}
        return Job.of(model, **(values | more))

    def _layout(self) -> str | wb.Strategy:
        """The strategy, as a name or, where no name says it, as a value."""
        if self.strategy == "hsdp" and self.nodes > 1:
            base = wb.Strategy(name="hsdp")
            return base.with_options(dp_replicate=self.nodes, dp_shard=self.gpus)
        return self._combined() if self.strategy in COMBINED else self.strategy

    def _combined(self) -> str | wb.Strategy:
        degrees = {name: getattr(self, name) for name in ALONE}
        taken = 1
        for name, degree in degrees.items():
            require_positive(name, degree)
            taken *= degree
        require_positive("ep", self.ep)
        if taken == 1 and self.ep == 1:
            return self.strategy
        if self.cards % taken:
            product = " x ".join(f"{name} {degree}" for name, degree in degrees.items())
            raise wb.UsageError(
                f"{product} = {taken} GPUs do not divide your {self.cards}. Change a degree, or "
                f"use a multiple of {taken} GPUs."
            )
        word = {"zero1": "zero1x", "zero2": "zero2x", "zero3": "zero3x", "ddp": "ddp"}
        parts = [f"{word.get(self.strategy, 'fsdp')}{self.cards // taken}"]
        parts += [f"{name}{degree}" for name, degree in degrees.items() if degree > 1]
        if self.ep > 1:
            parts.append(f"ep{self.ep}")
        found = wb.Strategy.parse("-".join(parts), self.cards)
        return found.with_options(reshard_after_forward=self.strategy != "fsdp-grad-op")

    def hidden(self) -> list[str]:
        """Controls that have no effect as the others stand."""
        away: list[str] = []
        if self.strategy == "single":
            away += ["gpus", "nodes"]
        if self.strategy not in COMBINED:
            away += ["tp", "pp", "cp", "ep"]
        elif not self._has_experts():
            away.append("ep")
        pipeline = self.strategy == "pp" or (self.strategy in COMBINED and self.pp != 1)
        tensor = self.strategy == "tp" or (self.strategy in COMBINED and self.tp != 1)
        away += [] if pipeline else ["schedule"]
        away += [] if tensor else ["sequence_parallel"]
        away += [] if self.lora_rank else ["lora_targets"]
        away += [] if self.strategy == "ddp" else ["bucket_views"]
        return away

    def _has_experts(self) -> bool:
        try:
            return bool(self.shape().experts)
        except (wb.WorkbenchError, OSError):
            return False


_SAME = tuple(
    field.name
    for field in dataclasses.fields(MemoryChoice)
    if field.name in options() and field.name != "model"
)
"""Controls that are options of a `Job` under the same name."""
FIELDS = tuple(field.name for field in dataclasses.fields(MemoryChoice))


def gpu_name(text: str) -> str:
    """The catalog's short name of a GPU; what nobody knows stays as it was typed."""
    try:
        return catalog.gpu(text).id
    except wb.UsageError:
        return text


def model_name(text: str) -> str:
    """The catalog's short name of a model; paths and unknown names stay as they were typed."""
    text = text.strip()
    try:
        return text if _is_path(text) else catalog.published(text).id
    except wb.UsageError:
        return text


def _usual_seq_len(model: str) -> int | None:
    try:
        return usual_seq_len(model_of(model))
    except (wb.WorkbenchError, OSError):
        return None


def model_of(text: str) -> wb.Model:
    """A catalog model, or the one that a ``config.json`` describes.

    Raises:
        UsageError: neither.
    """
    if not _is_path(text):
        return catalog.model(text)
    path = Path(text).expanduser()
    if path.is_dir():
        path /= "config.json"
    try:
        return _from_file(str(path), path.stat().st_mtime_ns)
    except OSError as error:
        raise wb.UsageError(
            f"{path} cannot be read: {error.strerror or error}. Give the path of a config.json, or "
            "choose a model from the list."
        ) from error


def _is_path(text: str) -> bool:
    return text.endswith(".json") or text.startswith((".", "/", "~"))


@functools.lru_cache(maxsize=16)
def _from_file(path: str, _changed_at: int) -> wb.Model:
    return wb.Model.from_config(path)

"""The controls of a `Job`: each of its options by name, and degrees beside a strategy's name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import workbench as wb
from workbench.describe import KERNELS, ImplementationAssumptions, catalog
from workbench.describe.checks import require_positive
from workbench.describe.job import OF_PRESET, PRESET, Job, default, options
from workbench.describe.model import USUAL_SEQ_LEN, usual_seq_len
from workbench.describe.named_model import read_model
from workbench.describe.needed import is_met, needs
from workbench.describe.option import declared, flat_names
from workbench.describe.placement import Placement
from workbench.store.stack_calibrations import calibrated
from workbench_widgets.controls import control_value, option_value
from workbench_widgets.form import Form

SHARDED = ("fsdp", "fsdp-grad-op", "zero1", "zero2", "zero3")
COMBINED = ("ddp", *SHARDED)
"""Strategies that leave room for tensor, pipeline and context parallelism beside them."""
AXES = ("tp", "pp", "cp")
STRATEGIES = ("single", "ddp", "fsdp", "fsdp-grad-op", "hsdp", "zero1", "zero2", "zero3", *AXES)
DEGREES = (*AXES, "ep")
"""Controls that combine with the strategy's name: ``fsdp`` and tp 2 on 8 GPUs are fsdp4-tp2."""
_ONE_GPU = Placement()
JOB: dict[str, Any] = {
    **{name: default(name) for name in options() if name != "cpu"},
    "model": "llama-3.2-1b",
    "gpu": ("h100-sxm",),
    "gpus": _ONE_GPU.world_size,
    "strategy": wb.Strategy.usual(_ONE_GPU.world_size),
    "seq_len": USUAL_SEQ_LEN,
    **dict.fromkeys(DEGREES, 1),
}
"""Every control of a job and its first value. The first GPU is the one to train on."""
_IMPLEMENTATION = declared(ImplementationAssumptions)
_Own = TypeVar("_Own", bound="JobForm")  # typing.Self is younger than Python 3.10


@dataclass(frozen=True, slots=True)
class JobForm(Form):
    """The controls of a job. Values are checked when the job is built."""

    FACE = "MemoryCalculator"
    FIRST = JOB

    def changed(self: _Own, changes: Mapping[str, Any]) -> _Own:  # noqa: PYI019
        """The form after some controls were moved; unknown names are left out."""
        moved = dict(self.moved)
        if "kernels" in changes:
            moved = {name: value for name, value in moved.items() if name not in OF_PRESET}
        form = super(JobForm, replace(self, moved=moved)).changed(changes)
        return form._with_degrees() if "strategy" in changes else form  # noqa: SLF001

    def _with_degrees(self: _Own) -> _Own:  # noqa: PYI019
        """Take a name with degrees such as ``fsdp4-tp2`` apart, where it fits the GPUs."""
        name = self["strategy"]
        if isinstance(name, wb.Strategy) and "gpus" not in self.moved:
            return replace(self, moved={**self.moved, "gpus": name.world_size})
        if not isinstance(name, str) or name in STRATEGIES or "-" not in name:
            return self
        try:
            place = Placement(gpus=self.moved.get("gpus"), nodes=self["nodes"]).sized(name)
            layout = wb.Strategy.parse(name, place.world_size)
        except wb.UsageError:  # as it was typed: the job that is built of it says why
            return self
        gpus = {"gpus": place.gpus}
        if layout.dp_replicate > 1 and layout.dp_shard > 1:  # no control says this: the name stays
            return replace(self, moved={**self.moved, **gpus})
        base = f"zero{layout.zero_stage}" if layout.zero_stage else "ddp"
        base = "fsdp" if base == "ddp" and layout.dp_shard > 1 else base
        degrees = {degree: getattr(layout, degree) for degree in DEGREES}
        return replace(self, moved={**self.moved, **gpus, **degrees, "strategy": base})

    def plain(self, name: str, value: Any) -> Any:
        """A control's value as the job has it, from what was typed or given."""
        if name == "gpu":
            several = value if isinstance(value, list | tuple) else [value]
            return tuple(dict.fromkeys(gpu_name(str(gpu)) for gpu in several if gpu))
        if name == "model":
            return model_name(str(value))
        if name == "strategy" and isinstance(value, str):
            return value.strip().lower()
        counted = "gpus" if name in DEGREES else name
        return option_value(options()[counted], value) if counted in options() else value

    def __getitem__(self, name: str) -> Any:
        """What a control is set to, or what follows for it from the others."""
        if name in self.moved:
            return self.moved[name]
        if name == "seq_len":
            return self._usual_seq_len()
        if name == "strategy":
            return wb.Strategy.usual(self.cards)
        if name in _IMPLEMENTATION:
            return getattr(KERNELS.get(str(self["kernels"]), KERNELS[PRESET.default]), name)
        return self.FIRST[name]

    @property
    def cards(self) -> int:
        """GPUs of all nodes; 1 while their number cannot be read."""
        sizes = self["gpus"], self["nodes"]
        return sizes[0] * sizes[1] if all(isinstance(size, int) for size in sizes) else 1

    def document(self) -> dict[str, Any]:
        """Plain values for the front end."""
        values = {name: self[name] for name in self.FIRST}
        if self["trainer"]:
            values |= self._of_trainer()
        return {name: control_value(options().get(name), value) for name, value in values.items()}

    def _of_trainer(self) -> dict[str, Any]:
        """What the trainer decides for the controls that were not moved."""
        try:
            job = self.job()
        except (wb.WorkbenchError, ValueError, OSError):
            return {}
        decided = options_in_effect(job.workload, job.strategy)
        return {name: decided[name] for name in decided if name in self.FIRST.keys() - self.moved}

    def model(self) -> wb.Model:
        """The model. Raises UsageError: not in the catalog, or no readable ``config.json``."""
        return read_model(self["model"])[0]

    def job(self) -> Job:
        """What, how and where.

        Raises:
            UsageError: a control says something that cannot be; the message says what is allowed.
        """
        return calibrated(Job.of(self["model"], **self.options()))

    def workload(self) -> wb.Workload:
        """What is trained. Raises UsageError: a value that the engine does not have."""
        single_gpu = {"strategy": "single", "gpus": 1, "nodes": 1}
        typed_options = self.options() | single_gpu
        job = Job.from_options(
            self["model"], typed_options, typed=typed_options, layout_is_open=True
        )
        return calibrated(job).workload

    def options(self) -> dict[str, Any]:
        """The options of the job as `Job.of` takes them, without those that have no effect.

        Raises:
            UsageError: a control is empty, or degrees do not fit the number of GPUs.
        """
        self.model()  # report an unknown name first
        self.check_filled()
        if not self["gpu"]:
            raise wb.UsageError("Choose a GPU: its memory determines what fits.")
        unused = {*self.hidden(), "model"}
        values = {name: value for name, value in self.moved.items() if name in options()}
        values |= {name: self[name] for name in ("gpus", "nodes")}
        values = {name: value for name, value in values.items() if name not in unused}
        return values | {"gpu": self["gpu"][0], "strategy": self._layout(unused)}

    def check_filled(self) -> None:
        """Refuse an emptied control of the job that is shown. Raises UsageError: names it."""
        empty = [name for name, value in self.moved.items() if value is None]
        for name in (name for name in empty if name not in self.hidden()):
            if self.FIRST.get(name) is not None and JOB.get(name) is not None:
                is_number = type(JOB[name]) in {int, float}
                raise wb.UsageError(
                    f"{name} is empty. {'Enter a whole number' if is_number else 'Choose a value'}."
                )

    def _layout(self, unused: Collection[str]) -> str | wb.Strategy:
        """The strategy's name, or what its name and the degrees beside it come to."""
        name = self["strategy"]
        degrees = {degree: 1 if degree in unused else self[degree] for degree in DEGREES}
        if name not in COMBINED or all(count == 1 for count in degrees.values()):
            return name
        for degree, count in degrees.items():
            require_positive(degree, count)
        product = " x ".join(f"{degree} {degrees[degree]}" for degree in AXES)
        per_copy = degrees["tp"] * degrees["pp"] * degrees["cp"]
        if self.cards % per_copy:
            raise wb.UsageError(
                f"{product} = {per_copy} GPUs do not divide your {self.cards}. Change a degree, or "
                f"use a multiple of {per_copy} GPUs."
            )
        word = {"zero1": "zero1x", "zero2": "zero2x", "zero3": "zero3x", "ddp": "ddp"}
        parts = [f"{word.get(name, 'fsdp')}{self.cards // per_copy}"]
        parts += [f"{degree}{count}" for degree, count in degrees.items() if count > 1]
        layout = wb.Strategy.parse("-".join(parts), self.cards)
        return layout.with_options(reshard_after_forward=name != "fsdp-grad-op")

    def hidden(self) -> list[str]:
        """Controls that have no effect as the others stand."""
        strategy = self["strategy"]
        combines = strategy in COMBINED
        away = ["gpus", "nodes"] if strategy == "single" else []
        away += [] if combines else DEGREES
        away += ["ep"] if combines and not self._has_experts() else []
        chosen = {name: self[name] for name in ("lora_rank", "quantization", "recompute")}
        away += [name for name in needs() if not is_met(name, chosen)]
        at_work = {axis for axis in AXES if strategy == axis or (combines and self[axis] != 1)}
        libraries = {
            "ddp": strategy == "ddp",
            "fsdp": strategy == "hsdp" or "fsdp" in str(strategy),
            "deepspeed": "zero" in str(strategy),
            "pipeline": "pp" in at_work,
            "context": "cp" in at_work,
        }
        groups = flat_names(wb.Strategy)
        away += [name for name in self.FIRST if not libraries.get(groups.get(name) or "", True)]
        return away if "tp" in at_work else [*away, "sequence_parallel"]

    def _has_experts(self) -> bool:
        try:
            return bool(self.model().experts)
        except (wb.WorkbenchError, OSError):
            return False

    def _usual_seq_len(self) -> int:
        try:
            return usual_seq_len(self.model())
        except (wb.WorkbenchError, OSError):
            return USUAL_SEQ_LEN


def options_in_effect(workload: wb.Workload, strategy: wb.Strategy) -> dict[str, Any]:
    """What they say of the options of a job, by name."""
    flat = strategy.options()
    return {
        **{name: getattr(workload, name) for name in declared(wb.Workload)},
        **{name: flat[name] for name in declared(wb.Strategy)},
        **{name: getattr(workload.kernels, name) for name in _IMPLEMENTATION},
    }


def gpu_name(text: str) -> str:
    """The catalog's short name of a GPU; an unknown one stays as it was typed."""
    try:
        return catalog.gpu(text).id
    except wb.UsageError:
        return text


def model_name(text: str) -> str:
    """The catalog's short name of a model; paths and unknown names stay as they were typed."""
    text = text.strip()
    try:
        is_path = text.endswith(".json") or text.startswith((".", "/", "~"))
        return text if is_path else catalog.published(text).id
    except wb.UsageError:
        return text

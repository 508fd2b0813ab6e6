"""What is asked of an export, and what it has written."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from workbench.describe.option import Option
from workbench.describe.option_limits import check_declared
from workbench.errors import UsageError
from workbench.recover.checkpoints import Checkpoint
from workbench.recover.script_checkpoints import EXPORTED
from workbench.store.files import read_json

_FORM = ("adapter", "dtype", "shard_gb")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelExport:
    """What is exported, and in which form."""

    checkpoint: Annotated[
        str | None, Option(help="Checkpoint: name or path [default: the newest whole one].")
    ] = None
    """None = the newest whole one, or the final model that the script wrote after it."""
    step: Annotated[
        int | None, Option(help="The checkpoint of this step, instead of its name.", least=0)
    ] = None
    """Optimizer steps behind it."""
    base: Annotated[
        str | None,
        Option(help="Base model: folder or hub name, where the run does not say it."),
    ] = None
    """Of an adapter; of sharded weights, a folder with the same config.json."""
    to: Annotated[
        str | None, Option(help="New folder [default: RUN-step-N here].", metavar="DIR")
    ] = None
    """None = RUN-step-N in the current folder."""
    adapter: Annotated[bool, Option(help="The adapter alone, as PEFT loads it.")] = False
    """Else it is merged into its base."""
    dtype: Annotated[
        str | None,
        Option(
            help="fp32, bf16 or fp16 [default: as saved].", choices=(None, "fp32", "bf16", "fp16")
        ),
    ] = None
    """Of the fractions; None = as the checkpoint has them, fp32 after merging an adapter."""
    shard_gb: Annotated[
        float,
        Option(help="Size of the largest file; about as much memory is used.", unit="GB", above=0),
    ] = 4.0
    """A weight that is larger has a file of its own."""

    def __post_init__(self) -> None:
        check_declared(self)
        if self.checkpoint is not None and self.step is not None:
            raise UsageError("--checkpoint and --step both name a checkpoint: give one of them.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedModel:
    """A model that was written, read again, and given its name."""

    run: str
    """Id of the run."""
    checkpoint: str
    """Name of the checkpoint."""
    step: int | None
    """Optimizer steps behind it; None = not known."""
    path: Path
    """The folder."""
    family: str
    """Whose class: ``gpt``, ``lora``, ``huggingface``, or ``tensors`` for weights alone."""
    architecture: str | None
    """Class of transformers; None for other models."""
    parameters: int
    """Numbers in all weights."""
    tensors: int
    """Weights by name."""
    bytes: int
    """Of the weights."""
    dtype: str
    """Of the weights."""
    fingerprint: str
    """SHA-256 over all weights by name, as written; that of ``--fingerprint`` where the run has
    the same names and types."""
    merged: bool
    """Whether an adapter was merged into its base."""
    logits_difference: float | None
    """Largest difference of merged against base and adapter, in fp32; None = nothing was merged."""
    loads: bool | None
    """Whether plain transformers loaded the folder with every weight; None = not tried."""
    notes: tuple[str, ...]
    """What someone should know of it."""

    def document(self) -> dict[str, Any]:
        """Plain JSON form."""
        return {**asdict(self), "path": str(self.path), "notes": list(self.notes)}


def write_receipt(
    folder: Path, exported: ExportedModel, export: ModelExport, checkpoint: Checkpoint
) -> None:
    """Keep beside a model what it was made from, so that it is not made twice.

    Raises:
        OSError: it cannot be written.
    """
    receipt = {**exported.document(), **_origin(folder, export, checkpoint)}
    del receipt["path"]  # of this machine
    (folder / EXPORTED).write_text(json.dumps(receipt, indent=2), encoding="utf-8")


def read_receipt(folder: Path, export: ModelExport, checkpoint: Checkpoint) -> ExportedModel | None:
    """The export that a folder holds; None = another one, none, or its weights have changed."""
    receipt = read_json(folder / EXPORTED)
    if receipt is None:
        return None
    origin = _origin(folder, export, checkpoint)
    if any(receipt.get(name) != value for name, value in origin.items()):
        return None
    try:
        names = set(ExportedModel.__dataclass_fields__) - {"path"}
        values: dict[str, Any] = {name: receipt[name] for name in names}
        values |= {"path": folder, "notes": tuple(receipt["notes"])}
    except (KeyError, TypeError):
        return None
    return ExportedModel(**values)


def _origin(folder: Path, export: ModelExport, checkpoint: Checkpoint) -> dict[str, Any]:
    """The checkpoint, the form, and the sizes of the files of weights."""
    base = hashlib.sha256(repr(export.base).encode()).hexdigest()  # it may be a path
    return {
        "form": {"base": base, **{name: getattr(export, name) for name in _FORM}},
        "saved_at": checkpoint.saved_at,
        "checkpoint": checkpoint.name,
        "weights": {
            file.name: file.stat().st_size for file in sorted(folder.glob("*.safetensors"))
        },
    }

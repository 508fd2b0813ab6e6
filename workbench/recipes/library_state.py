"""Checkpoints in Accelerate's own format, and what can continue from which format."""

# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from checkpoint_files import write_synced
from dcp_files import CheckpointError, Commit
from deepspeed_state import DeepSpeedState
from parameter_names import trained_parameters, trained_shapes
from portable import Portable, fingerprint
from recipe_options import RECORD, record
from training_state import TorchState, TrainingState

Shapes = dict[str, torch.Size]  # of a model's weights by name


class Library:
    """Accelerate's own format, for states that go by no weight's name (Muon, Adafactor, FSDP1…).

    It is continued by the same strategy and optimizer only.
    """

    def __init__(
        self, accelerator: Accelerator, model: Any, record: dict[str, Any], name: str = "accelerate"
    ) -> None:
        self.accelerator, self.model, self.format = accelerator, model, name
        self.record = {"format": name, **record}
        self._save_state = accelerator.save_state  # before anyone replaces it

    def save(self, folder: Path, commit: Commit | None = None) -> None:
        """As `Portable.save`: all ranks, and all or none of them raise CheckpointError."""
        accelerator, problem = self.accelerator, None
        if accelerator.is_main_process:
            shutil.rmtree(folder, ignore_errors=True)
        accelerator.wait_for_everyone()
        try:
            self._save_state(str(folder))
        except (OSError, RuntimeError) as error:  # torch's writer turns a full disk into the latter
            problem = error
        self._agree(problem)
        try:
            if accelerator.is_main_process:
                write_synced(folder / RECORD, json.dumps(self.record))
                if commit:
                    commit()
        except OSError as error:
            problem = error
        self._agree(problem)

    def _agree(self, problem: Exception | None) -> None:
        """Raise on every rank if one has a problem; else all wait for each other here."""
        flag = torch.tensor([problem is not None], device=self.accelerator.device)
        failed = torch.as_tensor(self.accelerator.gather(flag)).flatten().tolist()
        if any(failed):
            raise CheckpointError(f"{problem or 'a file was refused'} (rank {failed.index(True)})")

    def load(self, folder: Path) -> None:
        """Continue from what `save` wrote."""
        self.accelerator.load_state(str(folder))

    def fingerprint(self) -> str:
        """SHA-256 over all weights by name."""
        weights: Any = self.accelerator.get_state_dict(self.model)  # whole on the first rank
        return fingerprint(weights if self.accelerator.is_main_process else {})


def prepare(
    accelerator: Accelerator,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    options: argparse.Namespace,
) -> tuple[Any, Any, Portable | Library]:
    """The model and its optimizer as Accelerate spreads them, and how their states are saved."""
    plugin: Any = accelerator.deepspeed_plugin
    if plugin is not None and plugin.is_auto("train_micro_batch_size_per_gpu"):
        # DeepSpeed wants to know it, and Accelerate finds it in a DataLoader only.
        plugin.deepspeed_config["train_micro_batch_size_per_gpu"] = options.micro_batch
    shapes = trained_shapes(model)  # frozen weights are not written with each checkpoint
    prepared, states = accelerator.prepare(model, optimizer)
    adamw = states if getattr(options, "optimizer", "adamw") in {"adamw", "adamw-fused"} else None
    return prepared, states, choose_store(accelerator, prepared, adamw, options, shapes)


def choose_store(
    accelerator: Accelerator,
    model: Any,
    optimizer: Any,
    options: argparse.Namespace,
    shapes: Shapes,
) -> Portable | Library:
    """How a model that Accelerate prepared is saved: by name if it can be.

    `optimizer` is the prepared AdamW; None: another one, whose states are not known by name.
    `shapes` are those of the trained weights before `prepare`; frozen ones are not saved.
    """
    kind, ranks = accelerator.distributed_type.value, accelerator.num_processes
    plain = kind == "NO" or kind.startswith("MULTI_")
    name = "accelerate" if plain else "fsdp2" if accelerator.is_fsdp2 else kind.lower()
    word = {"accelerate": "ddp", "fsdp2": "fsdp"}.get(name, name)
    run_record = record(options, f"{word}{ranks}" if ranks > 1 else "single")
    training: TrainingState | None = None
    if optimizer is not None and name in {"accelerate", "fsdp2"}:
        training = TorchState(trained_parameters(model), optimizer.optimizer)
    elif optimizer is not None and name == "deepspeed" and options.precision != "fp16":
        training = DeepSpeedState(model)
    if training:
        return Portable(accelerator, training, shapes, run_record)
    return Library(accelerator, model, run_record, name)


def check_format(store: Portable | Library, folder: Path) -> None:
    """Leave with a sentence if `folder` has a format that this run cannot read."""
    try:
        saved: dict[str, Any] = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SystemExit(f"{folder} is not a checkpoint of this recipe: {error}") from error
    name, ranks = saved.get("format"), saved.get("world_size")
    optimizer, own = (_optimizer(state) for state in (saved, store.record))
    same = name == store.format and (
        name == Portable.format
        or (optimizer == own and (name == "accelerate" or ranks == store.record["world_size"]))
    )
    if not same:
        raise SystemExit(
            f"{Path(sys.argv[0]).name}: error: {folder.name} was written in the format {name!r} "
            f"({saved.get('strategy')}, {ranks} processes, optimizer {optimizer}), which only the "
            "same strategy, processes and optimizer continue. Checkpoints of ddp, fsdp (version "
            "2), zero1, zero2, zero3, tp, cp and pp with adamw or adamw-fused are continued by any "
            "of these."
        )


def _optimizer(record: dict[str, Any]) -> str | None:
    options = record.get("options")
    return options.get("optimizer") if isinstance(options, dict) else None

"""Which layouts load what transformers' Trainer saved: those that save it in the same form.

Read from transformers 5.24 (`Trainer._load_from_checkpoint`, `deepspeed_load_checkpoint`) and
DeepSpeed 0.19 (`_load_zero_checkpoint`): every other layout fails at start, on all ranks.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from workbench.describe import Strategy
from workbench.describe.supported import backend
from workbench.errors import UsageError
from workbench.recover.checkpoints import Checkpoint
from workbench.store.commands import command_for

_FORMS = {"fsdp": "pytorch_model_fsdp", "deepspeed": "global_step"}
"""Who spreads the work, and how the name of what Trainer then saves begins."""


def refuse_other_form(saved: Checkpoint, before: Strategy, now: Strategy, run: Path) -> None:
    """Refuse to load in layout `now` what Trainer saved in layout `before`, where it cannot.

    Args:
        saved: The checkpoint; one of another form than `before` saves is not judged.
        before: What it was saved under.
        now: What it would be loaded under.
        run: Its directory, for what to type.

    Raises:
        UsageError: Trainer would fail at start.
    """
    form, wanted = _form(before), _form(now)
    if saved.kind != "trainer" or form is None or wanted in {form, None}:
        return
    if form[0] != _form_of_files(saved.path):
        return
    weights = shlex.quote(str(saved.path))
    if form[0] in _FORMS:
        export = command_for(run, "export-model", "--checkpoint", saved.name)
        weights = f"the folder that `{export}` writes"
    raise UsageError(
        f"{saved.name} was saved by transformers' Trainer under {_said(before)}, and Trainer does "
        f"not load that under {_said(now)}. Resume {_where(form)}, or launch a new run with "
        f"{weights} as its model: its optimizer and schedule begin again."
    )


def _form(strategy: Strategy) -> tuple[str, object] | None:
    """What has to be the same; None = not known (Accelerate's meshes)."""
    kind = backend(strategy)
    if kind == "deepspeed":  # stages 1 and 2 save alike
        return "deepspeed", (strategy.zero_stage == 3, strategy.world_size)
    if kind == "fsdp":
        return "fsdp", strategy.fsdp.state_dict
    return ("whole", None) if kind in {"single", "ddp"} else None


def _form_of_files(folder: Path) -> str:
    names = [place.name for place in folder.iterdir()] if folder.is_dir() else []
    found = (form for form, begins in _FORMS.items() if any(n.startswith(begins) for n in names))
    return next(found, "whole")


def _said(strategy: Strategy) -> str:
    kind = backend(strategy)
    more = f", state dict {strategy.fsdp.state_dict}" if kind == "fsdp" else ""
    many = "1 rank" if strategy.world_size == 1 else f"{strategy.world_size} ranks"
    return f"{strategy.name} on {many}{more}"


def _where(form: tuple[str, object]) -> str:
    """The layouts that load it."""
    if form[0] == "fsdp":
        return f"under FSDP with --state-dict {form[1]}"
    return "as it was" if form[0] == "deepspeed" else "under single or ddp"

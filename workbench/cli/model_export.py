"""``workbench export-model``: take the trained model home."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

import workbench as wb
from workbench.cli.describing import with_options
from workbench.cli.tables import JsonOption, print_json
from workbench.cli.terminal import RunArgument, StoreOption, console, errors
from workbench.describe.option import Group
from workbench.store.layout import RunPaths
from workbench.trained_model.export import export_model
from workbench.trained_model.exported import Exported, ModelExport
from workbench.units import format_bytes, format_count


@with_options
def export_model_command(
    run: RunArgument = "last",
    *,
    wanted: Annotated[dict[str, Any], Group(of=ModelExport)],
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the trained model to a folder: safetensors, config, tokenizer and a model card.

    Sharded checkpoints (FSDP, ZeRO, TP, PP) are put together; LoRA is merged into its base.
    """
    handle = wb.attach(run, store)
    try:
        with _progress_bar() as show:
            exported = export_model(
                RunPaths(handle.directory), ModelExport(**wanted), on_progress=show
            )
    except KeyboardInterrupt:
        errors.print("Stopped: nothing was written.", markup=False)
        raise typer.Exit(130) from None
    if as_json:
        print_json(exported.document())
    else:
        _show(exported)


def _show(exported: Exported) -> None:
    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    kind = exported.architecture or {"gpt": "GPT of the recipe"}.get(exported.family, "weights")
    say(f"{exported.path}")
    say(
        f"  {kind}, {format_count(exported.parameters)} parameters in {exported.tensors} tensors, "
        f"{exported.dtype}, {format_bytes(exported.bytes)}"
    )
    say(f"  from {exported.checkpoint} of {exported.run}")
    say("  read again: every name, shape and hash is right")
    if exported.logits_difference is not None:
        say(
            f"  adapter merged: logits differ by at most {exported.logits_difference:.1e} from "
            "base and adapter"
        )
    if exported.loads:
        say("  plain transformers loads it with every weight")
    for note in exported.notes:
        say(f"  note: {note}")


@contextmanager
def _progress_bar() -> Generator[Callable[[float, str], None] | None]:
    """A bar on stderr; None where nobody looks."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415 - slow to load

    text = TextColumn("{task.description}", markup=False)
    with Progress(BarColumn(30), text, console=errors, transient=True) as bar:
        task = bar.add_task("starting", total=1.0)
        yield lambda share, said: bar.update(task, completed=share, description=said)

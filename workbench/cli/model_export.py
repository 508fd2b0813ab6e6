"""``workbench export-model``: take the trained model home, or to the hub."""

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
from workbench.store.printable import printable
from workbench.trained_model.export import export_model
from workbench.trained_model.exported import ExportedModel, ModelExport
from workbench.trained_model.hub import HubPush, Pushed
from workbench.trained_model.pushing import push_model
from workbench.units import format_bytes, format_count

_STOPPED = "Stopped: nothing was committed; the same command continues where it was."


@with_options
def export_model_command(
    run: RunArgument = "last",
    *,
    export_options: Annotated[dict[str, Any], Group(of=ModelExport)],
    hub_options: Annotated[dict[str, Any], Group(of=HubPush)],
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the trained model to a folder or the hub: safetensors, config, tokenizer and card.

    Sharded checkpoints (FSDP, ZeRO, TP, PP) are put together; LoRA is merged into its base.
    --push uploads it with your token (HF_TOKEN or hf auth login): private, one commit, after a
    --dry-run that shows files, sizes, license and what would be replaced.
    """
    push = HubPush(**hub_options)
    paths, pushed = RunPaths(wb.attach(run, store).directory), None
    try:
        with _progress_bar() as show:
            if push.push is None:
                exported = export_model(paths, ModelExport(**export_options), on_progress=show)
            else:
                exported, pushed = push_model(
                    paths, push, ModelExport(**export_options), on_progress=show
                )
    except KeyboardInterrupt:
        errors.print(_STOPPED if push.push else "Stopped: nothing was written.", markup=False)
        raise typer.Exit(130) from None
    if as_json:
        print_json({**exported.document(), "push": pushed and pushed.document()})
        return
    _show(exported)
    if pushed is not None:
        _show_push(pushed)


def _say(text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)


def _show(exported: ExportedModel) -> None:
    kind = exported.architecture or {"gpt": "GPT of the recipe"}.get(exported.family, "weights")
    _say(f"{exported.path}")
    _say(
        f"  {kind}, {format_count(exported.parameters)} parameters in {exported.tensors} tensors, "
        f"{exported.dtype}, {format_bytes(exported.bytes)}"
    )
    _say(f"  from {exported.checkpoint} of {exported.run}")
    _say("  read again: every name, shape and hash is right")
    if exported.logits_difference is not None:
        _say(
            f"  adapter merged: logits differ by at most {exported.logits_difference:.1e} from "
            "base and adapter"
        )
    if exported.loads:
        _say("  plain transformers loads it with every weight")
    for note in exported.notes:
        _say(f"  note: {note}")


def _show_push(pushed: Pushed) -> None:
    """What would be, or was, uploaded."""
    visibility = "public: everybody can read it" if pushed.public else "private"
    uploaded = pushed.commit is not None
    verb = "uploaded to" if uploaded else "would be uploaded to"
    _say(f"{verb} {printable(pushed.url)} as {printable(pushed.user)}")
    state = "exists" if pushed.exists else "new"
    license_name = printable(pushed.license)
    _say(f"  repository: {state}, {visibility}; license: {license_name}")
    if pushed.license == "unknown":
        _say("  note: say the license in README.md's header before others use it")
    for file in pushed.files:
        _say(f"  {file.state:8} {format_bytes(file.bytes):>10}  {printable(file.path)}")
    if pushed.stays:
        _say(f"  stays as it is: {', '.join(map(printable, pushed.stays))}")
    if uploaded:
        _say(f"  commit {printable(pushed.commit or '')}, {format_bytes(pushed.bytes)} sent")
    else:
        _say("  Nothing was uploaded. Next: the same command without --dry-run.")


@contextmanager
def _progress_bar() -> Generator[Callable[[float, str], None] | None]:
    """A bar on stderr; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415 - slow to load

    text = TextColumn("{task.description}", markup=False)
    with Progress(BarColumn(30), text, console=errors, transient=True) as bar:
        task = bar.add_task("starting", total=1.0)
        yield lambda share, text: bar.update(task, completed=share, description=text)

"""``workbench export``: a run, a script or a plan as the files of an engine beyond this host."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from workbench.cli.describing import Description, describe, option, with_options
from workbench.cli.tables import print_json
from workbench.cli.terminal import StoreOption, console, errors
from workbench.describe.checks import require_choice
from workbench.describe.job import options as job_options
from workbench.describe.option import Group
from workbench.engines.export_request import ExportRequest, known_provider, plan_entry
from workbench.engines.exporting import Export, slug
from workbench.engines.exporting import export as make
from workbench.engines.refusals import ENGINES, RENTING, places, starters
from workbench.errors import UsageError
from workbench.store.names import check_local

_TARGET_HELP = (
    "A run (id, prefix, name or 'last'), a recipe, or a script; --trainer: or plans.json."
)
_LISTED = ("model", "trainer", "gpu", "gpus", "nodes")


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Description):
    """The options of ``workbench export``; with --trainer also those of ``workbench memory``."""

    HIDDEN = tuple(name for name in job_options() if name not in _LISTED)
    target: Annotated[
        str | None, typer.Argument(metavar="RUN_RECIPE_OR_SCRIPT", help=_TARGET_HELP)
    ] = None
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- ARGS...]",
            help="Arguments of the script; {checkpoints} becomes their folder.",
        ),
    ] = None
    to: Annotated[str | None, option(f"{', '.join(ENGINES)}.", "--to", metavar="ENGINE")] = None
    why: Annotated[
        bool, option("Only show what each engine does not support at which provider.", "--why")
    ] = False
    plan: Annotated[
        Path | None, option("Take the machines of a plan: the output of workbench plan --json.")
    ] = None
    rank: Annotated[int, option("Number of the plan in it, from 1.")] = 1
    request: Annotated[Mapping[str, Any], Group(of=ExportRequest)] = field(
        default_factory=dict[str, Any]
    )
    """Those that were given."""
    address: Annotated[
        str | None, option("torchrun, accelerate: address of the first machine.")
    ] = None
    out: Annotated[Path | None, option("Write the files into this folder.", metavar="DIR")] = None
    store: StoreOption = None


@with_options
def export(options: ExportOptions) -> None:
    """Export a run, script or plan as files of another engine, or as a trainer's configuration.

    With --trainer NAME: parsed in our tests by the package's own parser: accelerate, deepspeed,
    transformers. Not parsed by the package itself: torchtitan, torchtune, axolotl, llama-factory,
    megatron-lm, trl.
    """
    if options.why:
        _why(options)
        return
    if options.to is None and options.job.get("trainer") is not None:
        _for_trainer(options)
        return
    if options.target is None or options.to is None:
        raise UsageError(
            "Give what to export and an engine: workbench export RUN --to ENGINE. Engines: "
            f"{', '.join(ENGINES)}. For a trainer's configuration: --trainer NAME."
        )
    if options.out is not None and options.out.exists() and not options.out.is_dir():
        raise UsageError(f"--out {options.out} is a file. Give a folder.")
    exported = make(
        _request(options).engine_job(options.store), options.to, address=options.address
    )
    if options.out is not None:
        check_local(options.out, "--out")
    written = exported.write(options.out) if options.out is not None else []
    if options.as_json:
        out = None if options.out is None else str(options.out.absolute())
        print_json({**exported.document(), "out": out})
    else:
        _show(exported, options.out, written)


def _for_trainer(options: ExportOptions) -> None:
    """The configuration that a trainer reads, of a run, a plan or the job of the options."""
    from workbench.engines.trainer_export import described  # noqa: PLC0415
    from workbench.trainer_configs import write_config, write_files  # noqa: PLC0415

    trainer: str = options.job["trainer"]
    model = options.job.get("model")
    job_options = {name: value for name, value in options.job.items() if name != "trainer"}
    is_typed = options.target is None and (model is not None or options.config is not None)
    job = describe(replace(options, job=job_options)) if is_typed else None
    job = job or described(options.target, options.rank, options.store)
    try:
        config = write_config(job, trainer, model)
    except UsageError as error:
        if not (options.target or "").endswith(".json"):
            raise
        other = f"Or take another plan of {options.target}: --rank {options.rank + 1}"
        raise UsageError(f"{error} {other}") from error
    if options.out is not None:
        check_local(options.out, "--out")
        write_files(config, options.out)
    if options.as_json:
        out = None if options.out is None else str(options.out.absolute())
        print_json({**config.document(), "out": out})
        return
    for note in config.notes:
        errors.print(f"note: {note}", markup=False, soft_wrap=True)
    for name, text in config.files.items() if options.out is None else ():
        console.print(f"[bold]# {escape(name)}[/]")
        console.print(text, markup=False, soft_wrap=True)
    if options.out is not None:
        console.print(f"wrote {', '.join(config.files)} to {options.out}", markup=False)
        console.print(f"  cd {shlex.quote(str(options.out))}", markup=False, soft_wrap=True)
    console.print(f"  {shlex.join(config.command)}", markup=False, soft_wrap=True)


def _request(options: ExportOptions) -> ExportRequest:
    assert options.target is not None
    plan = None if options.plan is None else plan_entry(options.plan, options.rank)
    request_options = {"arguments": tuple(options.arguments or ()), "plan": plan, **options.request}
    return ExportRequest.of(options.target, request_options)


def _show(exported: Export, out: Path | None, written: list[Path]) -> None:
    for note in exported.notes:
        errors.print(f"note: {note}", markup=False, soft_wrap=True)
    if out is None:
        for name, text in exported.files.items():
            console.print(f"[bold]# {escape(name)}[/]")
            console.print(text, markup=False, soft_wrap=True)
        copies = ", ".join(exported.copies)
        if copies:
            console.print(f"beside it: {copies}", markup=False, soft_wrap=True)
        console.print(f"write them with: --out {slug(exported.job)}", markup=False, soft_wrap=True)
    else:
        console.print(f"wrote {len(written)} files to {out}", markup=False, soft_wrap=True)
        console.print(f"  cd {shlex.quote(str(out))}", markup=False, soft_wrap=True)
    for line in exported.next:
        console.print(f"  {line}", markup=False, soft_wrap=True)


def _why(options: ExportOptions) -> None:
    """The table of what each engine refuses, or the answer for one provider."""
    if options.to is not None and options.to not in RENTING:
        require_choice("engine", options.to, ENGINES)
        raise UsageError(
            f"{options.to} rents nothing; it runs on your machines. Engines that rent: "
            f"{', '.join(RENTING)}."
        )
    request_options = options.request
    provider = (
        None if "provider" not in request_options else known_provider(request_options["provider"])
    )
    rows = [place for place in places() if options.to in {None, place.engine}]
    rows = [place for place in rows if provider in {None, place.provider}]
    if not rows:
        subject = "No engine of ours" if options.to is None else f"{options.to} never"
        raise UsageError(
            f"{subject} rents at {provider}. For your own machines: --to torchrun, accelerate or "
            "slurm."
        )
    if options.as_json:
        print_json([_document(place) for place in rows])
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("engine", "provider", "several machines", "spot", "storage", "image", "idle"):
        table.add_column(column, overflow="fold")
    for row in rows:
        cells = (row.nodes, row.spot, row.bucket, row.image, row.idle)
        table.add_row(row.engine, row.provider, *(_cell(cell) for cell in cells))
    console.print(table)
    if provider is not None:
        _started(
            provider, nodes=request_options.get("nodes", 1), spot=request_options.get("spot", False)
        )


def _document(row: Any) -> dict[str, Any]:
    names = ("engine", "provider", "nodes", "spot", "bucket", "image", "idle", "source", "date")
    return {name: getattr(row, name) or None for name in names}


def _cell(reason: str) -> str:
    return f"[yellow]no[/]: {escape(reason)}" if reason else "yes"


def _started(provider: str, *, nodes: int, spot: bool) -> None:
    """For one provider: which engine starts so many machines there."""
    console.print(f"\n{nodes} {'spot ' if spot else ''}machines at {provider}:")
    for engine, reason in starters(provider, nodes=nodes, spot=spot).items():
        console.print(f"  {engine}: {reason or 'yes'}", markup=False, soft_wrap=True)

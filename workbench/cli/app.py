"""Every command of ``workbench``. Names, JSON keys and exit codes are a contract.

Exit code 0: done; 1: the thing asked about failed; 2: wrong usage. ``--json`` prints exactly one
JSON value on stdout; everything else goes to stderr.
"""

from __future__ import annotations

import re
import sys
import warnings
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

import workbench as wb
from workbench.cli.commands import register
from workbench.cli.live import follow
from workbench.cli.tables import number, print_json, runs_table, summary_table

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Predict, launch, watch and explain multi-GPU training on this host.",
)
# A pipe has no width: tables are not squeezed, and ids stay whole.
console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
errors = Console(stderr=True, highlight=False)

_STORE_HELP = "Run store [default: $WORKBENCH_STORE or ./runs]."
StoreOption = Annotated[str | None, typer.Option("--store", metavar="DIR", help=_STORE_HELP)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else.")]
_RUN_HELP = "Run id, unique prefix, name, or 'last'."
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help=_RUN_HELP)]
NprocOption = Annotated[
    int | None, typer.Option(help="Processes [default: all GPUs, or 2 on CPU].")
]
CpuOption = Annotated[bool, typer.Option("--cpu", help="CPU ranks although there are GPUs.")]


def run_app() -> None:
    """Run a command and turn our exceptions into one clear line and the right exit code."""
    warnings.formatwarning = _note
    try:
        app()
    except SystemExit as error:
        if error.code == 2 and "launch" in sys.argv[1:2] and "--" not in sys.argv:
            errors.print("Options of the script itself come after --: workbench launch SCRIPT -- …")
        raise
    except wb.UsageError as error:
        _fail(error, 2)
    except wb.WorkbenchError as error:
        _fail(error, 1)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)


def _note(message: Warning | str, *_place: object, **_line: object) -> str:
    """A warning as one line for people: no path, no source."""
    return f"note: {message}\n"


def _fail(error: Exception, code: int) -> NoReturn:
    if "--json" in sys.argv:
        print_json({"error": str(error)})
    errors.print("error:", style="bold red", end=" ")
    errors.print(str(error), markup=False)
    sys.exit(code)


@app.command()
def launch(
    script: Annotated[
        str, typer.Argument(metavar="SCRIPT_OR_RECIPE", help="A Python script, or a recipe: gpt.")
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- ARGS...]", help="The script's own arguments."),
    ] = None,
    *,
    strategy: Annotated[
        str | None, typer.Option(help="single, ddp, fsdp, fsdp-grad-op, hsdp [default: ddp].")
    ] = None,
    wrap: Annotated[str | None, typer.Option(help="FSDP: class of the model's blocks.")] = None,
    recompute: Annotated[str | None, typer.Option(help="FSDP: none or full.")] = None,
    offload: Annotated[
        str | None, typer.Option(help="FSDP, to the host: optimizer,parameters.")
    ] = None,
    nproc: NprocOption = None,
    cpu: CpuOption = False,
    name: Annotated[str | None, typer.Option(help="Display name of the run.")] = None,
    port: Annotated[int, typer.Option(help="Rendezvous port; 0 = a free one.")] = 0,
    capture: Annotated[bool, typer.Option(help="Observe loss and steps in the script.")] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would start.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Stay to the end (Ctrl-C detaches).")
    ] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a training run on this host; it goes on when this terminal closes."""
    words = tuple(word.strip() for word in (offload or "").split(",") if word.strip())
    options = {"recompute": recompute, "offload": words}
    checked = wb.request(
        script,
        arguments or [],
        strategy=strategy,
        options={option: value for option, value in options.items() if value},
        processes=nproc,
        cpu=cpu,
        name=name,
        store=store,
        wrap=wrap,
        capture=capture,
        port=port,
    )
    if dry_run:
        _show_request(checked, as_json=as_json)
    else:
        _start(checked, wait=wait, as_json=as_json)


def _start(checked: wb.Request, *, wait: bool, as_json: bool) -> None:
    run = wb.start(checked)
    document: dict[str, Any] = {
        "run": run.id,
        "dir": str(run.directory),
        "command": run.command,
        "config_files": checked.config_files_in(run.directory),
    }
    if not as_json:
        console.print(f"started {run.id} in {run.directory}", markup=False, soft_wrap=True)
    if wait:
        try:
            _wait(run, quiet=as_json)
        finally:
            document |= run.summary()
            if as_json and run.status.live:  # Ctrl-C detached us: say where it stands
                print_json(document)
    if as_json:
        print_json(document)
    elif not wait:
        _print_next_steps(run)
    if wait and run.outcome not in {"succeeded", "stopped"}:
        raise typer.Exit(1)


def _show_request(checked: wb.Request, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "run": None,
                "dir": str(checked.planned_directory),
                "command": checked.command,
                "environment": checked.environment,
                "config_files": checked.config_files,
                "shell": checked.shell(),
                "predicted": checked.predicted.document() if checked.predicted else None,
            }
        )
        return
    if checked.predicted is not None:
        table = "\n".join(f"#   {line}" for line in str(checked.predicted).splitlines())
        console.print(f"# memory predicted per rank:\n{table}", markup=False)
    console.print(
        "# the exact command; it needs Accelerate alone, not the workbench:", markup=False
    )
    console.print(checked.shell(), markup=False, soft_wrap=True)


def _print_next_steps(run: wb.Run) -> None:
    for verb in ("attach", "logs", "stop"):
        console.print(f"  workbench {verb} {run.id}", markup=False)


def _wait(run: wb.Run, *, quiet: bool) -> None:
    try:
        if quiet:
            run.wait()
        else:
            follow(run, console)
    except KeyboardInterrupt:
        hint = f"detached; the run goes on. Stop it with: workbench stop {run.id}"
        errors.print(hint, markup=False)
        raise typer.Exit(0) from None


@app.command()
def runs(*, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """List the runs of the store, newest first."""
    found = wb.runs(store)
    if as_json:
        print_json(found)
    elif not found:
        root = wb.Store(store).root
        console.print(f"No runs in {root} yet. Start one: workbench launch gpt", markup=False)
    else:
        console.print(runs_table(found))


@app.command()
def show(
    run: RunArgument = "last", *, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Show one run: outcome, losses, speed, memory measured beside predicted."""
    handle = wb.attach(run, store)
    summary = handle.summary()
    if as_json:
        print_json(summary)
    else:
        console.print(summary_table(summary))


@app.command()
def metrics(
    run: RunArgument = "last",
    *,
    rank: Annotated[int | None, typer.Option(help="One rank, not the mean over ranks.")] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print loss, lr, grad norm and step time of every optimizer step."""
    rows = wb.attach(run, store).metrics(rank)
    if as_json:
        print_json(rows)
        return
    table = Table("step", "loss", "lr", "grad norm", "step s", box=None, pad_edge=False)
    for row in rows:
        values = (row["loss"], row["lr"], row["grad_norm"], row["step_seconds"])
        table.add_row(str(row["step"]), *(number(value, 5) for value in values))
    console.print(table)


@app.command()
def logs(
    run: RunArgument = "last",
    *,
    rank: Annotated[int | None, typer.Option(help="One rank only.")] = None,
    tail: Annotated[int | None, typer.Option(help="The last N lines.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Every state of progress bars too.")] = False,
    store: StoreOption = None,
) -> None:
    """Print what the ranks wrote."""
    text = wb.attach(run, store).logs(rank, tail)
    if not raw:
        text = re.sub(r"[^\n]*\r(?![\n\r]|$)", "", text)
    sys.stdout.buffer.write(text.encode("utf-8", errors="replace"))
    if text and not text.endswith("\n"):
        sys.stdout.buffer.write(b"\n")


@app.command()
def attach(run: RunArgument = "last", *, store: StoreOption = None) -> None:
    """Watch a run live in this terminal; Ctrl-C leaves it running."""
    handle = wb.attach(run, store)
    _wait(handle, quiet=False)


@app.command()
def stop(
    run: RunArgument = "last",
    *,
    now: Annotated[bool, typer.Option("--now", help="No checkpoint, no patience.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop a run: same step on all ranks and a checkpoint, then harder; confirm nothing is left."""
    handle = wb.attach(run, store)
    if not as_json and handle.status.live:
        console.print(f"stopping {handle.id} …", markup=False)
    result = handle.stop(now=now)
    if as_json:
        print_json(result)
    else:
        left = result["processes_left"]
        console.print(
            f"{result['outcome']}: {handle.status.message} "
            + ("No process of the run is left." if not left else f"{left} processes are left."),
            markup=False,
        )
    if result["processes_left"]:
        raise typer.Exit(1)


@app.command()
def demo(
    *,
    minutes: Annotated[float, typer.Option(help="Training time.")] = 2.0,
    nproc: NprocOption = None,
    cpu: CpuOption = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run the main job: predict, launch the embedded recipe, watch, compare with the prediction."""
    from workbench.cli.demo import run_demo  # noqa: PLC0415

    code = run_demo(
        console, minutes=minutes, processes=nproc, cpu=cpu, store=store, as_json=as_json
    )
    raise typer.Exit(code)


@app.command()
def doctor(*, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Say what this host has, what is wrong with it, and how to fix each."""
    result = wb.doctor(store)
    if as_json:
        print_json(result)
    else:
        table = Table("", "check", "found", "fix", box=None, pad_edge=False)
        for check in result["checks"]:
            mark = "[green]ok[/]" if check["ok"] else "[red]no[/]"
            table.add_row(mark, check["name"], check["found"], check["fix"] or "")
        console.print(table)
    raise typer.Exit(0 if result["ok"] else 1)


register(app)


@app.command()
def version() -> None:
    """Print the version."""
    console.print(wb.__version__, markup=False)

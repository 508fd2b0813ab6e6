"""``workbench verify``: whether N ranks train what one does. Exit code 1: something differs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.padding import Padding
from rich.text import Text

from workbench.cli.describing import with_options
from workbench.cli.progress import interruptible
from workbench.cli.tables import JsonOption, print_json
from workbench.cli.terminal import ModuleOption, ScriptArguments, console
from workbench.describe.option import Group
from workbench.launching.prepare.targets import MODULE
from workbench.verifying.verdict import Verdict
from workbench.verifying.verify import Verification, VerifyError, VerifyOptions
from workbench.verifying.verify import verify as run_verification

_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}
_INDENT = 9


@with_options
def verify(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="A Python script or a recipe.")],
    arguments: ScriptArguments = None,
    *,
    module: ModuleOption = False,
    options: Annotated[VerifyOptions, Group(of=VerifyOptions)],
    as_json: JsonOption = False,
) -> None:
    """Run a script for a few steps on one rank and on several; name what differs first.

    Data, initial weights, gradients, updates and modes are compared; exit code 1 if one is wrong.
    Dropout and torch.compile are off in these runs, and what the script does not seed is seeded.
    """
    target = f"{MODULE}{script}" if module else script
    answer = _verified(target, arguments or [], options)
    if as_json:
        print_json(answer.document())
    else:
        _print(answer)
    if answer.first is not None:
        raise typer.Exit(1)


def _verified(target: str, arguments: list[str], options: VerifyOptions) -> Verification:
    """Verify, with a line of progress on stderr; a script that fails shows its own traceback."""
    kept_text = "nothing was kept" if options.keep is None else f"its runs are in {options.keep}"
    try:
        with interruptible(kept_text) as on_progress:
            return run_verification(target, arguments, options, on_progress=on_progress)
    except VerifyError as error:
        sys.stderr.write(error.log.rstrip() + "\n" if error.log else "")
        raise


def _print(answer: Verification) -> None:
    first = answer.first
    head = "nothing is wrong" if first is None else f"{first.kind}: {first.what}"
    style = "bold green" if first is None else "bold"
    console.print(Text(f"{answer.script}: {head}", style=style), soft_wrap=True)
    for verdict in answer.verdicts:
        _print_verdict(verdict)
    steps = f"{answer.steps} step{'s' * (answer.steps != 1)}"
    console.print(f"ran      {'; '.join(answer.runs)}; {steps} each", markup=False)
    console.print(Text(f"compared {_compared(answer)}"))
    for note in answer.notes:
        console.print(Text(f"note     {note}"))
    if answer.kept is not None:
        console.print(Text(f"kept in  {answer.kept}"))


def _print_verdict(verdict: Verdict) -> None:
    where = "before the first step" if verdict.step == 0 else f"step {verdict.step}"
    rank = "" if verdict.rank is None else f", rank {verdict.rank}"
    title = Text(f"{verdict.severity:<9}", style=_STYLES[verdict.severity])
    console.print(title.append(f"{verdict.kind}, {where}{rank}: {verdict.what}", style="bold"))
    for text in (
        verdict.evidence,
        f"Right: {verdict.bound}",
        verdict.cause,
        f"Next: {verdict.next}",
    ):
        console.print(Padding(Text(text), (0, 0, 0, _INDENT)))


def _compared(answer: Verification) -> str:
    """How far values could be compared, in a sentence."""
    comparison = answer.comparison
    always = "data, initial weights, exchange and updates of the ranks with each other"
    if not comparison.steps:
        return f"{always}; not losses and gradients with the other run: {comparison.why}"
    figures = [
        f"{name} within {value:.1g}"
        for name, value in (("losses", comparison.loss), ("gradients", comparison.gradient))
        if value is not None
    ]
    bound = "" if comparison.bound is None else f" (rounding explains {comparison.bound:.1g})"
    return (
        f"{always}; over {comparison.steps} steps {' and '.join(figures)}{bound}, since "
        f"{comparison.why}"
    )

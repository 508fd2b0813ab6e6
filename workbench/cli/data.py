"""``workbench data``: what is in a file of training data, and how a model will see it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from workbench.cli.describing import with_options
from workbench.cli.tables import JsonOption, print_json
from workbench.cli.terminal import console
from workbench.describe.option import Group
from workbench.store.printable import printable
from workbench.training_data import (
    DataReport,
    RowResult,
    TokenOptions,
    TokenReport,
    examine,
    token_report,
)
from workbench.training_data.forms import FORMS
from workbench.training_data.pictures import PictureReport, examine_pictures, has_pictures

_PROBLEMS, _LETTERS = 10, 1200  # of an example that are shown


@with_options
def data(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A file or folder of training examples, or of pictures."
        ),
    ],
    *,
    tokens: Annotated[TokenOptions, Group(of=TokenOptions)],
    as_json: JsonOption = False,
) -> None:
    """Check training examples; with --model show them as it will see them, and count tokens.

    Of a folder of pictures: their captions, sizes, and which cannot be trained on, and why.
    """
    if has_pictures(file):
        _pictures(examine_pictures(file), as_json=as_json)
        return
    report = examine(file)
    counted = None if tokens.model is None else token_report(report, tokens)
    if as_json:
        print_json(document(report, counted))
        return
    _print_report(report)
    if counted is None:
        _print_examples(report)
        console.print("Count tokens and see the label mask: add --model DIR", style="dim")
    else:
        _print_tokens(counted, tokens, pairs=report.form == "preference")


def document(report: DataReport, counted: TokenReport | None) -> dict[str, Any]:
    """The JSON form; keys are a contract."""
    values = asdict(report)
    values["path"] = str(report.path)
    values["problems"] = [_problem(problem) for problem in report.problems]
    values["first"] = [
        asdict(preview.example) | {"row": preview.row}
        for preview in report.first
        if preview.example
    ]
    values["tokens"] = None
    if counted is not None:
        values["tokens"] = asdict(counted) | {"refused": list(map(_problem, counted.refused))}
    return values


def _pictures(report: PictureReport, *, as_json: bool) -> None:
    """A folder of pictures, as the recipe finetune_image takes it."""
    document = report.document()
    if as_json:
        print_json(document)
        return

    def say(text: str, **style: Any) -> None:
        console.print(printable(text), markup=False, soft_wrap=True, **style)

    say(f"{report.path}: pictures, captions from {report.captions}", style="bold")
    sides = f"{document['smallest_side']} to {document['largest_side']} pixels a side"
    say(f"{_counted(len(report.pictures), 'picture')} ({sides}), {len(report.problems):,} skipped")
    for problem in report.problems[:_PROBLEMS]:
        say(f"  {problem}", style="yellow")
    if len(report.problems) > _PROBLEMS:
        say(f"  and {len(report.problems) - _PROBLEMS:,} more; --json lists them", style="yellow")
    for picture in report.first:
        size = f"{picture.width} x {picture.height}"
        say(f"\n{picture.path.name}, {size}", style="bold")
        say(picture.caption[:_LETTERS])


def _problem(read: RowResult) -> dict[str, Any]:
    return {"row": read.row, "problem": read.problem, "empty": read.is_empty}


def _print_report(report: DataReport) -> None:
    console.print(f"{report.path}: {report.kind}, {FORMS[report.form]}", style="bold", markup=False)
    skipped = report.broken + report.empty
    repeated = report.duplicates
    duplicates = "n/a duplicates" if repeated is None else _counted(repeated, "duplicate")
    console.print(
        f"{_counted(report.rows, 'row')}: {_counted(report.examples, 'example')} ({duplicates}), "
        f"{report.broken:,} broken, {report.empty:,} empty",
        markup=False,
    )
    for note in report.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    for problem in report.problems[:_PROBLEMS]:
        console.print(f"  row {problem.row}: {problem.problem}", style="yellow", markup=False)
    if skipped > _PROBLEMS:
        console.print(f"  and {skipped - _PROBLEMS:,} more; --json lists them", style="yellow")
    if skipped:
        subject = "This row is" if skipped == 1 else "These rows are"
        rule = f"{subject} skipped in training; finetune's --strict refuses the file instead."
        console.print(rule, style="dim")


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _print_examples(report: DataReport) -> None:
    for read in report.first:
        assert read.example is not None
        console.print(f"\nrow {read.row}", style="bold")
        turns = [(turn.role, turn.content) for turn in read.example.turns]
        turns += [(f"rejected {turn.role}", turn.content) for turn in read.example.rejected]
        for role, content in turns or [("text", read.example.text)]:
            console.print(_marked(role, content, "green" if role == "assistant" else ""))


def _marked(mark: str, content: str, style: str) -> Text:
    """A stretch with its mark before each line; control characters are shown, not obeyed."""
    cut = content if len(content) <= _LETTERS else f"{content[:_LETTERS]} …"
    lines = cut.split("\n")
    safe = ["".join(c if c.isprintable() else repr(c)[1:-1] for c in line) for line in lines]
    return Text("\n".join(f"{mark:>9} │ {line}" for line in safe), style=style)


def _print_tokens(counted: TokenReport, tokens: TokenOptions, *, pairs: bool) -> None:
    console.print(f"\nAs the model sees them; template: {counted.template}", markup=False)
    for preview in counted.first:
        console.print(f"\nrow {preview.row}: {preview.tokens:,} tokens", style="bold")
        for text, learned in preview.parts:
            stretch = text.removesuffix("\n")
            mark = ("preferred" if preview.rejected else "learned") if learned else "read"
            console.print(_marked(mark, stretch, "green" * learned))
        if preview.rejected:
            console.print(_marked("rejected", preview.rejected.removesuffix("\n"), "red"))
    for note in counted.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    for problem in counted.refused[:_PROBLEMS]:
        console.print(f"  row {problem.row}: {problem.problem}", style="yellow", markup=False)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in _figures(counted, tokens, pairs=pairs):
        table.add_row(name, value)
    console.print()
    console.print(table)


def _figures(counted: TokenReport, tokens: TokenOptions, *, pairs: bool) -> list[tuple[str, str]]:
    """Each figure with its name; of pairs each answer, with its prompt, is a sequence."""
    batch, noun = tokens.global_batch or tokens.micro_batch, "sequences" if pairs else "examples"
    gain = [("packing saves computed positions", f"x {counted.packing_gain:.2f}")]
    steps = [(f"an epoch: steps of {batch}, packed", f"{counted.epoch_steps_packed:,}")]
    if pairs:  # they cannot be packed
        gain = steps = []
    return [
        ("tokens: median", f"{counted.median:,}"),
        ("tokens: 95 % have at most", f"{counted.p95:,}"),
        ("tokens: longest", f"{counted.longest:,}"),
        ("tokens that are learned", f"{counted.learned_share:.1%}"),
        (f"{noun} longer than {tokens.seq_len:,}", f"{counted.truncated_share:.1%}"),
        ("tokens that are cut off", f"{counted.cut_share:.1%}"),
        (f"{noun} lost: all that is learned is cut off", f"{counted.lost_share:.1%}"),
        (f"padding in micro-batches of {tokens.micro_batch}", f"{counted.padding_share:.1%}"),
        *gain,
        ("an epoch: tokens", f"{counted.epoch_tokens:,}"),
        (f"an epoch: steps of {batch} examples", f"{counted.epoch_steps:,}"),
        *steps,
    ]

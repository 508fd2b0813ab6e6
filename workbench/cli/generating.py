"""``workbench generate``: the trained model answers, beside its base."""

from __future__ import annotations

import itertools
import sys
from typing import Annotated, Any

import typer

import workbench as wb
from workbench.cli.describing import with_options
from workbench.cli.progress import busy
from workbench.cli.tables import JsonOption, print_json
from workbench.cli.terminal import RunArgument, StoreOption, errors
from workbench.describe.option import Group
from workbench.errors import UsageError
from workbench.store.layout import RunPaths
from workbench.store.printable import printable
from workbench.trained_model.conversation import BASE, TRAINED, Conversation, Piece, Sampling
from workbench.trained_model.exported import ModelExport
from workbench.trained_model.source import trained_model


@with_options
def generate(
    run: RunArgument,
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="What it continues or answers; - reads stdin.")
    ],
    *,
    sampling: Annotated[dict[str, Any], Group(of=Sampling)],
    source: Annotated[dict[str, Any], Group(of=ModelExport, only=("checkpoint", "step", "base"))],
    trained_only: Annotated[
        bool, typer.Option("--trained-only", help="Of an adapter: without its base's answer.")
    ] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let the trained model answer a prompt; of an adapter (LoRA), beside its base model.

    Ctrl-C ends the answer.
    """
    handle = wb.attach(run, store)
    text = sys.stdin.read() if prompt == "-" else prompt
    if not text.strip():
        raise UsageError('The prompt is empty: workbench generate RUN "def main(".')
    chosen = ModelExport(**source)
    model = trained_model(
        RunPaths(handle.directory), chosen.checkpoint, step=chosen.step, base=chosen.base
    )
    for note in model.notes:
        errors.print(f"note: {note}", markup=False)
    how, answers = Sampling(**sampling), dict[str, str]()
    with Conversation(model) as conversation:
        sides = (TRAINED,) if trained_only else conversation.sides
        pieces = conversation.ask(text, how, sides=sides)
        try:
            with busy(f"loading {model.checkpoint.name}"):
                waiting = [next((piece for piece in pieces if piece.side), Piece(side=TRAINED))]
            for piece in itertools.chain(waiting, pieces):
                if not as_json and piece.side not in answers and len(sides) > 1:
                    typer.echo(f"== {piece.side} ==")
                answers[piece.side] = answers.get(piece.side, "") + piece.text
                if not as_json:
                    _show(piece)
        except KeyboardInterrupt:
            errors.print("\nstopped", markup=False)
            raise typer.Exit(130) from None
    if as_json:
        print_json(
            {
                "run": model.run,
                "checkpoint": model.checkpoint.name,
                "prompt": text,
                "trained": answers.get(TRAINED),
                "base": answers.get(BASE),
            }
        )


def _show(piece: Piece) -> None:
    """Text as it comes; at an answer's end, how fast it was."""
    sys.stdout.write(printable(piece.text, max_line=None))
    sys.stdout.flush()
    if piece.tokens is not None:
        typer.echo("")
        rate = piece.tokens / piece.seconds if piece.seconds else 0.0
        note = f"; {piece.note}" if piece.note else ""
        summary = f"({piece.tokens} tokens, {rate:.1f} tokens/s{note})"
        errors.print(summary, style="dim", markup=False)

"""``workbench tag``, ``note``, ``archive`` and ``delete``: keeping a store in order."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

import workbench as wb
from workbench.cli.completion import run_names
from workbench.cli.tables import JsonOption, print_json
from workbench.cli.terminal import RunArgument, StoreOption, YesOption, console, errors
from workbench.compare.deletion import Size, check_deletable, size
from workbench.compare.deletion import delete as remove
from workbench.observe.rows import labelled
from workbench.store.labels import Labels, change_labels, check_tag
from workbench.units import format_bytes

_Runs = Annotated[
    list[str],
    typer.Argument(metavar="RUN...", help="Ids, prefixes or names.", autocompletion=run_names),
]
_Ids = Annotated[
    list[str], typer.Argument(metavar="RUN...", help="Full run ids.", autocompletion=run_names)
]


def tag(
    run: RunArgument,
    tags: Annotated[list[str] | None, typer.Argument(metavar="TAG...", help="Tags to add.")] = None,
    *,
    remove: Annotated[
        list[str] | None, typer.Option(help="Tag to remove; may be repeated.", metavar="TAG")
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add or remove tags of a run; without arguments, show them."""
    paths = wb.Store(store).locate(run)
    removed = [check_tag(tag) for tag in remove or ()]
    _print(
        paths.directory.name, change_labels(paths, add=tags or (), remove=removed), as_json=as_json
    )


def note(
    run: RunArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Note text; '' removes it.")],
    *,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set the note of a run."""
    paths = wb.Store(store).locate(run)
    _print(paths.directory.name, change_labels(paths, note=text), as_json=as_json)


def archive(
    runs: _Runs,
    *,
    undo: Annotated[bool, typer.Option("--undo", help="Show them in lists again.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hide runs from lists without deleting them; --undo shows them again."""
    place = wb.Store(store)
    all_paths = [place.locate(run) for run in runs]  # all are known before the first is changed
    done = {
        run_paths.directory.name: change_labels(run_paths, archived=not undo)
        for run_paths in all_paths
    }
    if as_json:
        print_json([{"run": run, **labelled(labels)} for run, labels in done.items()])
    else:
        console.print(f"{'shown again' if undo else 'archived'}: {', '.join(done)}", markup=False)


def _print(run: str, labels: Labels, *, as_json: bool) -> None:
    if as_json:
        print_json({"run": run, **labelled(labels)})
        return
    parts = [f"tags: {' '.join(labels.tags) or 'none'}"]
    parts += [f"note: {labels.note}"] if labels.note else []
    console.print(f"{run}  {'  '.join(parts)}", markup=False, soft_wrap=True)


def delete(
    runs: _Ids,
    *,
    yes: YesOption = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete ended runs permanently, including checkpoints. To hide them: workbench archive."""
    place = wb.Store(store)
    run_paths = [check_deletable(place, run) for run in dict.fromkeys(runs)]
    sizes = [size(paths) for paths in run_paths]
    if not yes:
        _ask(sizes)
    freed: list[dict[str, Any]] = []
    for paths, usage in zip(run_paths, sizes, strict=True):
        freed.append(asdict(remove(place, str(paths.directory))))
        if not as_json:
            console.print(f"deleted {usage.run}: {format_bytes(usage.bytes)} freed", markup=False)
    if as_json:
        print_json(freed)


def _ask(sizes: list[Size]) -> None:
    """Ask on stderr, so that --json stays one value on stdout."""
    for usage in sizes:
        checkpoints = f", {usage.checkpoints} checkpoints" if usage.checkpoints else ""
        text = f"{usage.run}: {usage.files:,} files{checkpoints}, {format_bytes(usage.bytes)}"
        errors.print(text, markup=False)
    if not sys.stdin.isatty():
        raise wb.UsageError(
            "Deleting needs confirmation and this is not an interactive terminal. Pass --yes to "
            "delete."
        )
    if not typer.confirm(f"Delete {len(sizes)} permanently?", err=True):
        errors.print("nothing deleted")
        raise typer.Exit(1)

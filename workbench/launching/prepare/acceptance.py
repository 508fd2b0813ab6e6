"""Whether a record (run.json) may start something: it is this user's own, or they adopted it.

A resume starts the command of the record, and its hooks when the run is idle or has ended. So what
a record starts is sealed with its user's key (see `vouching`) when it is written. A run directory
from elsewhere has no such seal: it is resumed only after its user has read what it starts and
accepted that with ``workbench adopt``.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import Any, cast

from workbench.errors import ForeignRunError, StoreError
from workbench.launching.prepare.placement import without_placement
from workbench.store.commands import command_for
from workbench.store.files import write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.ownership import check_own, in_trusted_store
from workbench.store.printable import printable
from workbench.store.record import read_run
from workbench.store.run_record import RunRecord
from workbench.store.signatures import can_vouch, is_vouched, key_path, vouch

_SEAL = "what it starts"  # has blanks, so no variable has this name
_SIGNED = (
    "script",
    "module",
    "recipe",
    "arguments",
    "working_directory",
    "recovery",
    "trackers",
)
_HOOKS = ("on_end", "on_idle")
_MOST = 2000  # characters of a line: a record may hold any


def seal(run: RunRecord) -> list[str]:
    """The record's ``vouched`` with a proof of what it starts now."""
    return vouch(run, {_SEAL: _signed_text(run)})


def is_accepted(paths: RunPaths, run: RunRecord) -> bool:
    """Whether this user's workbench wrote what the record starts, or they adopted it.

    Also where no key can be kept (a home that cannot be written), and in a trusted store.
    """
    own = is_vouched(run, _SEAL, _signed_text(run))
    return own or in_trusted_store(paths.directory) or not can_vouch()


def check_accepted(paths: RunPaths, run: RunRecord) -> None:
    """Refuse to start what a record from elsewhere says.

    Raises:
        ForeignRunError: no one has accepted it; the message shows what it would start.
    """
    if is_accepted(paths, run):
        return
    starts = "\n".join(f"  {line}" for line in started_commands(run))
    name = printable(run.run, max_line=_MOST)
    raise ForeignRunError(
        f"The record of {name} was not written by your workbench on this machine (it comes from "
        f"elsewhere or from an earlier version, it was changed, or your key is gone). Started, "
        f"it would run, as you:\n{starts}\nIf you want that, accept it once: "
        f"{printable(command_for(paths.directory, 'adopt'), max_line=_MOST)}"
    )


def accept(paths: RunPaths) -> list[str]:
    """Seal the record as it is now; returns what it starts, or nothing where it was sealed.

    Raises:
        ForeignRunError: the run is another user's, or others can write to it.
        StoreError: run.json cannot be written, or there is no key to seal it with.
    """
    check_own(paths, "adopted")
    run = read_run(paths)
    if run is None or is_accepted(paths, run):
        return []
    signed = replace(run, vouched=seal(run))
    if not is_accepted(paths, signed):
        raise StoreError(
            f"Records are sealed with the key {key_path()}, which cannot be used: it has to be a "
            "file of yours that only you can read. Remove it, then adopt again."
        )
    try:
        write_json_atomic(paths.run, signed.document(), indent=2)
    except OSError as error:
        raise StoreError(f"{paths.run} cannot be written: {error}") from error
    return started_commands(run)


def started_commands(run: RunRecord) -> list[str]:
    """A line for the command of the record, and for each of its hooks."""
    lines = {"command": run.command, "in the folder": run.working_directory}
    lines |= {name: run.recovery.get(name) for name in _HOOKS} | {"copied to": run.mirror}
    return [f"{name}: {_line(words)}" for name, words in lines.items() if words]


def _line(words: Any) -> str:
    parts = cast("list[Any]", words) if isinstance(words, list) else [words]
    text = shlex.join(str(word) for word in parts)
    return printable(text.replace("\n", "\\n"), max_line=_MOST)


def _signed_text(run: RunRecord) -> str:
    """One text for all that decides what is started; not where its machines find each other."""
    document = run.document()  # what a record of an earlier version lacks is not in its seal
    command = without_placement(run.command) if "command" in document else None
    signed = [command, *(document.get(name) for name in _SIGNED)]
    return json.dumps([*signed, run.mirror] if run.mirror else signed, sort_keys=True)

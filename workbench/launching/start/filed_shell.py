"""The environment of the shell that filed a run: it counts when the queue starts the run.

The dispatcher has the variables of the shell that happened to start it. So a run's own go with its
place in the queue, in a file that only its user can read and that a key of theirs vouches for.
Secrets are not among them: the dispatcher's count, and who files the run is told where they differ.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from workbench.describe.detection import CHOOSE_GPUS
from workbench.launching.prepare.launcher_process import LOADERS, inherited
from workbench.store import processes, secrets
from workbench.store.files import read_json
from workbench.store.queue_files import QueueEntry, QueueFiles
from workbench.store.signatures import can_vouch, is_signed, sign

OF_ONE_SHELL = frozenset({*LOADERS, *CHOOSE_GPUS, "WORKBENCH_STORE"})
"""Variables that neither a dispatcher has from its shell, nor a run from the one that filed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """What a queued run is started with."""

    variables: Mapping[str, str]
    """The environment of its supervisor."""
    note: str = ""
    """What of it is not as it was where the run was filed; "" = all is."""


def shell_document(run: str) -> dict[str, Any]:
    """This process's environment, for the file of a run in the queue."""
    here = {name: value for name, value in inherited().items() if name not in OF_ONE_SHELL}
    hidden = _secret_names(here)
    variables = {name: value for name, value in here.items() if name not in hidden}
    proofs = {name: sign(_secret_text(run, name, here[name])) for name in sorted(hidden)}
    return {
        "variables": variables,
        "secrets": proofs,
        "proof": sign(_signed_text(run, variables, proofs)),
    }


def secrets_elsewhere(queue: QueueFiles) -> str:
    """A sentence on secrets that this environment has and the queue's dispatcher has not so.

    "" = there is none, or no dispatcher yet: it will have this environment.
    """
    if not queue.is_served:
        return ""
    pid = int((read_json(queue.dispatcher) or {}).get("pid") or 0)
    names = sorted(_secret_names(inherited()))
    return _note([name for name in names if processes.variable(pid, name) != os.environ[name]])


def shell_of(entry: QueueEntry) -> Shell:
    """The environment for the run of that place, in the dispatcher that starts it."""
    variables, proofs = _texts(entry.shell.get("variables")), _texts(entry.shell.get("secrets"))
    if not variables:
        return Shell(variables=dict(os.environ))  # filed by an earlier version
    text = _signed_text(entry.run, variables, proofs)
    if not _is_own(text, entry.shell.get("proof")):
        note = "It is not known that you filed its environment: it has that of the queue's shell."
        return Shell(variables=dict(os.environ), note=note)
    own_secrets = {name: os.environ[name] for name in proofs if name in os.environ}
    other = [
        name
        for name, proof in proofs.items()
        if name not in own_secrets
        or not _is_own(_secret_text(entry.run, name, own_secrets[name]), proof)
    ]
    return Shell(variables={**variables, **own_secrets}, note=_note(other))


def _texts(document: object) -> dict[str, str]:
    """The texts of a JSON object under their names; {} = it is none."""
    items = cast("dict[str, Any]", document).items() if isinstance(document, dict) else ()
    return {name: value for name, value in items if isinstance(value, str)}


def _is_own(text: bytes, proof: object) -> bool:
    """Whether this user's workbench signed it, or there is no key to sign with."""
    return is_signed(text, str(proof)) or not can_vouch()


def _note(names: Sequence[str]) -> str:
    if not names:
        return ""
    return (
        f"The queue keeps no secrets, so {', '.join(names)} will be as in the shell that started "
        "the queue, not as where this run was filed. To change that, start the queue again from "
        "there: workbench queue pause, workbench queue start."
    )


def _secret_names(environment: Mapping[str, str]) -> Collection[str]:
    hidden = secrets.redact_environment(environment)
    return {
        name
        for name, value in environment.items()
        if hidden[name] != value or secrets.hide_known(value) != value
    }


def _secret_text(run: str, name: str, value: str) -> bytes:
    return f"secret variable\0{run}\0{name}\0{value}".encode(errors="surrogateescape")


def _signed_text(run: str, variables: Mapping[str, str], proofs: Mapping[str, str]) -> bytes:
    return json.dumps(["environment", run, variables, proofs], sort_keys=True).encode()

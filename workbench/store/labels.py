"""Tags, a note and the archive mark of a run: people's words beside the record, no part of it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Generator, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from workbench.errors import StoreError, UsageError
from workbench.store.files import read_json, write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.names import readable
from workbench.store.ownership import check_own
from workbench.store.printable import printable
from workbench.store.schema import SCHEMA_VERSION

MAX_TAGS = 32
MAX_NOTE = 2000
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+-]{0,39}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """What people say of a run."""

    tags: tuple[str, ...] = ()
    """In alphabetical order, each once."""
    note: str | None = None
    """Free text; shown as text."""
    archived: bool = False
    """Hidden from lists unless asked for."""


def read_labels(paths: RunPaths) -> Labels:
    """The run's labels; none where no one gave any, or the file cannot be read."""
    document: dict[str, Any] = read_json(paths.labels) or {}
    tags = [tag for tag in document.get("tags", []) if _TAG.fullmatch(tag)]
    note = document.get("note")
    return Labels(
        tags=tuple(sorted(set(tags)))[:MAX_TAGS],
        note=printable(note)[:MAX_NOTE] if note else None,
        archived=document.get("archived", False),
    )


def change_labels(
    paths: RunPaths,
    *,
    add: Iterable[str] = (),
    remove: Iterable[str] = (),
    note: str | None = None,
    archived: bool | None = None,
) -> Labels:
    """Change a run's labels and return them; what is not given stays.

    Args:
        paths: The run.
        add: Tags to add.
        remove: Tags to remove; one that it does not have is not an error.
        note: Its new note; "" takes the note away.
        archived: Whether lists hide it.

    Raises:
        ForeignRunError: the run is another user's, or others can write to it.
        UsageError: a tag or the note is not allowed; nothing was changed.
        StoreError: the run directory cannot be written.
    """
    check_own(paths, "labelled")
    add = [check_tag(tag) for tag in add]
    if note is not None and len(note) > MAX_NOTE:
        raise UsageError(f"The note has {len(note)} characters; at most {MAX_NOTE} are kept.")
    try:
        with _locked(paths):
            now = read_labels(paths)
            tags = (set(now.tags) | set(add)) - set(remove)
            if len(tags) > MAX_TAGS:
                raise UsageError(
                    f"{paths.directory.name} would have {len(tags)} tags; at most {MAX_TAGS} are "
                    "kept. Remove some first."
                )
            text = now.note if note is None else (printable(readable(note)).strip() or None)
            hidden = now.archived if archived is None else archived
            changed = Labels(tags=tuple(sorted(tags)), note=text, archived=hidden)
            if changed != now:
                document = {"schema": SCHEMA_VERSION, **asdict(changed), "changed_at": time.time()}
                write_json_atomic(paths.labels, document)
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(
            f"The labels of {paths.directory.name} cannot be written: {error.strerror or error}"
        ) from error
    return changed


def check_tag(tag: str) -> str:
    """Return `tag`, or say what is wrong with it. Raises UsageError: it is no tag."""
    tag = readable(tag)
    if not _TAG.fullmatch(tag):
        raise UsageError(
            f"{tag!r} is not a tag. A tag begins with a letter or digit and has at most 40 "
            "letters, digits and . _ : / + -, for example 'baseline' or 'lr:3e-4'."
        )
    return tag


@contextlib.contextmanager
def _locked(paths: RunPaths) -> Generator[None]:
    """Hold the run directory, so that of two changes at once none is lost."""
    handle = os.open(paths.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        with contextlib.suppress(OSError):  # some network file systems lock no directory
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)

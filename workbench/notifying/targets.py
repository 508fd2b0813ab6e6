"""Where a user's messages go, kept in one private file of theirs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, cast, get_args

from workbench.errors import StoreError, UnknownNameError, UsageError, pip_install
from workbench.store.detached import lock_file
from workbench.store.files import read_json_or_why, write_bytes_atomic

ALL, NONE = "all", "none"
"""What a run may be told instead of names."""
Level = Literal["error", "warning", "note", "none"]
LEVELS: tuple[Level, ...] = get_args(Level)
INSTALL = f"Install it: {pip_install('apprise')}"
"""What to do where Apprise is missing."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One place that messages go to."""

    name: str
    """What the user calls it; runs keep this alone."""
    url: str
    """Its address as Apprise reads it; a secret."""
    findings: Level = "warning"
    """Findings of this severity and worse are sent; ``none``: only restarts and the end."""

    def __post_init__(self) -> None:
        """Refuse what could not be told apart or read back."""
        if not _NAME.fullmatch(self.name) or self.name in {ALL, NONE}:
            raise UsageError(
                f"{self.name!r} is not a name for a target. Use up to 40 letters, digits, '_', "
                "'-' or '.', and neither 'all' nor 'none'."
            )


def level(name: str) -> Level:
    """The severity of that name. Raises UnknownNameError: there is none."""
    if name not in LEVELS:
        raise UnknownNameError.near("severity", name, LEVELS)
    return name


def targets_path() -> Path:
    """The user's file of targets."""
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(home).expanduser() / "training-workbench" / "notify.json"


def read_targets() -> dict[str, Target]:
    """The user's targets by name; none where there is no file.

    Raises:
        StoreError: the file cannot be read, or other users can read or write it.
    """
    path = targets_path()
    try:
        status = path.lstat()
    except OSError:
        return {}
    if status.st_uid != os.getuid() or status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise StoreError(
            f"{path} holds secrets, and other users can get at it. Make it yours alone: "
            f"chmod 600 {path}"
        )
    document, why = read_json_or_why(path)
    listed: Any = (document or {}).get("targets")
    if not isinstance(listed, list):
        raise StoreError(
            f"{path} cannot be read ({why or 'it has no list of targets'}). Delete it, and add the "
            "targets again with: workbench notify add NAME URL"
        )
    read = [_target(target) for target in cast("list[Any]", listed)]
    return {target.name: target for target in read if target is not None}


def _target(document: object) -> Target | None:
    """One entry of the file; None where it is of another version."""
    if not isinstance(document, Mapping):
        return None
    entry = cast("Mapping[str, Any]", document)
    try:
        name, url, findings = (str(entry[key]) for key in ("name", "url", "findings"))
        return Target(name=name, url=url, findings=level(findings))
    except (KeyError, UsageError):
        return None


def write_targets(targets: Mapping[str, Target]) -> Path:
    """Keep them, readable by this user alone. Raises StoreError: the file cannot be written."""
    path = targets_path()
    _make_folder(path)
    try:
        before = os.umask(0o077)
        try:
            data = {"targets": [asdict(target) for target in targets.values()]}
            write_bytes_atomic(path, json.dumps(data).encode(), hide=False)  # secrets are its use
        finally:
            os.umask(before)
        path.chmod(0o600)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}.") from error
    return path


def _make_folder(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}.") from error


@contextlib.contextmanager
def changing_targets() -> Generator[dict[str, Target]]:
    """The user's targets by name, to be changed; what they are at the end is kept.

    Of two changes at once the second begins when the first is kept.

    Raises:
        StoreError: the file cannot be read or written.
    """
    path = targets_path()
    _make_folder(path)
    lock = lock_file(path.with_suffix(".lock"), wait=True)
    try:
        targets = read_targets()
        yield targets
        write_targets(targets)
    finally:
        if lock is not None:  # some network file systems lock nothing
            os.close(lock)


def chosen(names: Sequence[str]) -> list[str]:
    """The targets that a run's option names: ``all``, ``none``, or names.

    Every launch has ``all`` by default, so it names none where Apprise is not installed: the
    targets may belong to another environment of the user, and must not keep a run from starting.

    Raises:
        UsageError: a target is not known, or named ones cannot be told: Apprise is not installed.
    """
    if list(names) in ([], [NONE]):
        return []
    if list(names) == [ALL] and not is_installed():
        return []
    targets = read_targets()
    selected = list(targets) if list(names) == [ALL] else list(dict.fromkeys(names))
    for name in selected:
        if name in {ALL, NONE}:
            raise UsageError(f"--notify {','.join(names)}: {name!r} stands alone, or give names.")
        if name not in targets:
            if not targets:
                raise UsageError(
                    f"There is no target {name!r} to notify. Add it first: workbench notify add "
                    f"{name} URL"
                )
            raise UnknownNameError.near("target to notify", name, targets)
    if selected:
        check_installed()
    return selected


def is_installed() -> bool:
    """Whether Apprise, which sends, is there; imports nothing."""
    return find_spec("apprise") is not None


def check_installed() -> None:
    """Make sure that Apprise is there. Raises UsageError, with the pip line: it is not."""
    if not is_installed():
        raise UsageError(f"Messages are sent by Apprise, not installed here. {INSTALL}")

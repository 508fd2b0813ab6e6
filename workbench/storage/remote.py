"""`Remote`: the one place that reads and writes addresses of object stores, through fsspec."""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false

from __future__ import annotations

import contextlib
import os
import random
import re
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from workbench.errors import StorageError, UsageError, pip_install
from workbench.store import names
from workbench.store.secrets import hide_known

RETRY_SECONDS = (0.5, 1.0, 2.0, 4.0)
"""Waits between the attempts of one transfer."""
ANSWER_SECONDS = 60.0
"""A server that says nothing for so long is asked again."""
SLOWEST = 256e3
"""Bytes a second of the slowest line that is waited for."""
_T = TypeVar("_T")
_PACKAGES = {
    **dict.fromkeys(("s3", "s3a"), "s3fs"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("az", "abfs"), "adlfs"),
    **dict.fromkeys(("https", "http"), "aiohttp"),
    **dict.fromkeys(("file", "memory"), "fsspec"),
}
_READ_ONLY = {"https", "http"}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_FINAL = (PermissionError, IsADirectoryError, NotADirectoryError, TypeError, ValueError)
_S3 = {
    "use_listings_cache": False,
    "config_kwargs": {"connect_timeout": 10, "read_timeout": 60, "retries": {"max_attempts": 1}},
}


def is_address(text: str) -> bool:
    """Whether it is an address such as ``s3://bucket/runs``, not a name or a folder.

    >>> is_address("s3://bucket/runs"), is_address("runs/gpt"), is_address("last")
    (True, False, False)
    """
    return _SCHEME.match(text) is not None


def leads_to_pushed(text: str) -> bool:
    """Whether a text leads to where a run was pushed to, not to one of a store.

    A folder is told by its slashes, because a run's name may have one too (``sweep/trial-1``). One
    that has a record and no manifest is a run's own.

    >>> leads_to_pushed("s3://bucket/runs/gpt"), leads_to_pushed("/mnt/runs/gpt")
    (True, True)
    >>> leads_to_pushed("gpt"), leads_to_pushed("sweep/trial-1")
    (False, False)
    """
    if is_address(text):
        return True
    folder = Path(os.path.expanduser(text))  # noqa: PTH111 - Path's refuses unknown users
    if (folder / "manifest.json").is_file():
        return "/" in text
    return text.startswith(("/", "./", "../", "~/")) and not (folder / "run.json").is_file()


def checked_address(url: str) -> str:
    """`url` without a slash at its end; a folder as its absolute path.

    Raises:
        UsageError: its kind is not known, or it holds credentials.
    """
    match = _SCHEME.match(url)
    if not url.strip():
        raise UsageError("The address is empty. Give s3://bucket/runs or a folder.")
    if match is None:
        scheme, colon, _ = url.partition(":/")
        if colon and scheme.lower() in _PACKAGES:
            raise UsageError(f"{url!r}: give two slashes after the colon, as in s3://bucket/runs.")
        return str(Path(url).expanduser().absolute())
    if match[1].lower() not in _PACKAGES:
        schemes = ", ".join(f"{name}://" for name in ("s3", "gs", "az", "https", "file"))
        raise UsageError(
            f"{hide_known(url)!r} is not an address that can be used. Known: {schemes} and folders."
        )
    location = url[match.end() :]
    if "@" in location.partition("/")[0] or "?" in location or hide_known(url) != url:
        raise UsageError(
            "The address holds credentials or a query, which would be kept in records. Give the "
            "address alone; set credentials in the environment (AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, AWS_PROFILE, GOOGLE_APPLICATION_CREDENTIALS)."
        )
    first, is_file = location.partition("/")[0], match[1].lower() == "file"
    if not location.strip("/") or bool(first) == is_file:
        raise UsageError(
            f"{url!r} names no {'absolute folder: give file:///mnt/runs' if is_file else 'bucket'}."
        )
    return url.rstrip("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteObject:
    """An object that lies there."""

    bytes: int
    """Its size."""
    written_at: float | None
    """Unix seconds by the address's clock; None = it does not tell."""


class Remote:
    """A folder behind an address. Names are relative to it, with slashes.

    Every call is tried again with growing waits where the network or the server fails; what is
    refused or missing is told at once.
    """

    def __init__(self, url: str, pause: Callable[[float], None] = time.sleep) -> None:
        """`pause`: waits between two attempts.

        Raises:
            UsageError: the address cannot be used.
            StorageError: a package for it is missing; the message says which.
        """
        self.url = checked_address(url)
        match = _SCHEME.match(self.url)
        self._scheme = match[1].lower() if match else "file"
        self._pause = pause
        self._files, self._root = self._open()

    def _open(self) -> tuple[Any, str]:
        options: dict[str, Any] = dict(_S3) if self._scheme in {"s3", "s3a"} else {}
        options |= {"auto_mkdir": True} if self._scheme == "file" else {}
        try:
            from fsspec.core import url_to_fs  # noqa: PLC0415  (only for who stores elsewhere)

            files, root = url_to_fs(self.url, **options)
        except ImportError as error:
            raise StorageError(
                f"{self._scheme}:// needs a package that is not installed: "
                f"{pip_install(_PACKAGES[self._scheme])}"
            ) from error
        except (ValueError, OSError) as error:
            raise UsageError(f"{self.url!r} cannot be used: {hide_known(str(error))}") from error
        if self._scheme == "file":
            names.check_folder(Path(root), "The address", StorageError)
        return files, str(root).rstrip("/")

    def below(self, name: str) -> Remote:
        """The folder `name` of this one."""
        return Remote(f"{self.url}/{name}", self._pause)

    def read(self, name: str, max_bytes: int) -> bytes:
        """The content of an object.

        Raises:
            FileNotFoundError: there is none.
            StorageError: it cannot be read, or has more than `max_bytes`.
        """
        path = self._path(name)
        data = self._try(
            "read",
            name,
            lambda: self._files.cat_file(
                path, start=0, end=max_bytes + 1, **self._limit(max_bytes)
            ),
        )
        if len(data) > max_bytes:
            raise StorageError(f"{self.url}/{name} has more than {max_bytes:,} bytes.")
        return bytes(data)

    def check_writable(self) -> None:
        """Refuse an address that can only be read; raises UsageError."""
        if self._scheme in _READ_ONLY:
            raise UsageError(
                f"{self._scheme}:// is read only here. Push to s3://, gs:// or a folder."
            )

    def check_outside(self, run: Path) -> None:
        """Refuse an address in the run's own folder, which a push sends; raises UsageError."""
        is_folder = self._scheme == "file"
        if is_folder and Path(self._root).resolve().is_relative_to(run.resolve()):
            raise UsageError(
                f"{self.url} lies in the folder of the run itself. Give one outside of the store."
            )

    def write(self, name: str, data: bytes) -> None:
        """Write an object; readers see all of it or what was there before.

        Raises:
            UsageError: such addresses are only read.
            StorageError: it cannot be written.
        """
        self.check_writable()
        path = self._path(name)

        def write() -> None:
            if self._scheme != "file":
                self._files.pipe_file(path, data, **self._limit(len(data)))
                return
            fresh = f"{path}.{uuid.uuid4().hex[:8]}.part"
            try:
                self._files.pipe_file(fresh, data)
                self._files.mv(fresh, path)
            except OSError:
                Path(fresh).unlink(missing_ok=True)
                raise

        try:
            self._try("write", name, write)
        except FileNotFoundError as error:
            raise StorageError(
                f"{self.url} cannot be written: {hide_known(str(error))}. Make the bucket or "
                "folder first."
            ) from error

    def sizes(self, folder: str) -> dict[str, int]:
        """Bytes of each object below `folder`, by its name there; {} where there is none."""
        return {name: stored.bytes for name, stored in self.objects(folder).items()}

    def objects(self, folder: str) -> dict[str, RemoteObject]:
        """Each object below `folder`, by its name there; {} where there is none."""
        path = self._path(folder)

        def find() -> dict[str, Any]:
            try:
                return dict(self._files.find(path, detail=True, **self._limit(0)))
            except FileNotFoundError:
                return {}

        entries = self._try("list", folder, find)
        return {
            str(name).partition(path.lstrip("/") + "/")[2]: RemoteObject(
                bytes=int(about.get("size") or 0), written_at=_written_at(about)
            )
            for name, about in entries.items()
        }

    def folders(self) -> list[str]:
        """Names directly below; [] where they cannot be listed."""
        try:
            return sorted(
                {
                    str(name).rstrip("/").rpartition("/")[2]
                    for name in self._files.ls(self._root, detail=False)
                }
            )
        except Exception:  # noqa: BLE001  (only makes a message better)
            return []

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects; what is not there, or may not be removed, stays."""
        for name in names:
            try:
                self._files.rm_file(self._path(name))
            except Exception:  # noqa: BLE001  (it costs some cents, nothing else)
                return

    def _limit(self, size: int) -> dict[str, Any]:
        """The seconds after which a transfer of `size` bytes is given up, where that is possible.

        The library's own limits begin when a request has been sent.
        """
        own_loop = bool(getattr(self._files, "async_impl", False))
        return {"timeout": ANSWER_SECONDS + size / SLOWEST} if own_loop else {}

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _try(self, action: str, name: str, call: Callable[[], _T]) -> _T:
        """Call until it works; `RETRY_SECONDS` and some chance between."""
        for wait in (*RETRY_SECONDS, None):
            try:
                return call()
            except FileNotFoundError:
                raise
            except Exception as error:
                if wait is None or _is_final(error):
                    if _is_refused(error):  # the next one reads the credentials, perhaps renewed
                        type(self._files).clear_instance_cache()
                    raise StorageError(self._sentence(action, name, error)) from error
                self._pause(wait * random.uniform(0.75, 1.25))  # noqa: S311  (spreads the load)
        raise AssertionError

    def _sentence(self, action: str, name: str, error: Exception) -> str:
        why = hide_known(f"{error}".strip() or type(error).__name__)[:300]
        where = f"{self.url}/{name}"
        if _is_refused(error):
            return (
                f"{where} cannot be {_PAST[action]}: access is refused ({why}). Check that the "
                "credentials in the environment may use it."
            )
        return f"{where} cannot be {_PAST[action]}: {why}."


_PAST = {"read": "read", "write": "written", "list": "listed"}


def _written_at(about: dict[str, Any]) -> float | None:
    """Each kind of store has its own name for it: a number, a datetime, or ISO text."""
    for name in ("LastModified", "last_modified", "updated", "mtime", "created"):
        value = about.get(name)
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                value = datetime.fromisoformat(value.replace("Z", "+00:00"))
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return None


def _status(error: Exception) -> int | None:
    status = getattr(error, "status", None)
    return status if isinstance(status, int) else None


def _is_refused(error: Exception) -> bool:
    """Whether the credentials are missing, expired, or may not do it."""
    credentials = isinstance(error, PermissionError) or "Credentials" in type(error).__name__
    return credentials or _status(error) in {401, 403}


def _is_final(error: Exception) -> bool:
    """Whether trying again cannot help."""
    status = _status(error)
    if status is not None:
        return 400 <= status < 500 and status not in {408, 429}
    full = isinstance(error, OSError) and error.errno in {28, 30, 122, 22}  # no space, read only
    return full or isinstance(error, _FINAL) or "Credentials" in type(error).__name__

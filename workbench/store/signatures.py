"""Values of a record (run.json) that this user's own workbench wrote, proved by a key of theirs.

A record is a file, and a run directory may be a download whose files belong to whoever unpacked
it. The key lies outside of every store, so no one who makes a run directory elsewhere can vouch for
what is in it. Where the key is lost (a new machine), the record is as good as a foreign one.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from workbench.store.run_record import RunRecord

_BYTES = 32


def vouch(run: RunRecord, values: Mapping[str, str]) -> list[str]:
    """What to keep in the record's ``vouched``: what it has, and proofs of `values`."""
    key = _key(make=True)
    if key is None:
        return run.vouched
    proofs = (_proof(key, run, name, value) for name, value in values.items())
    return list(dict.fromkeys([*run.vouched, *proofs]))


def is_vouched(run: RunRecord, name: str, value: str) -> bool:
    """Whether this user's workbench wrote that value of that variable into this record."""
    key = _key(make=False)
    if key is None:
        return False
    proof = _proof(key, run, name, value)
    recorded = (text.encode("ascii", "replace").decode() for text in run.vouched)
    return any(hmac.compare_digest(proof, text) for text in recorded)


def sign(text: bytes) -> str:
    """A proof that this user's workbench wrote `text`; "" where no key can be kept."""
    key = _key(make=True)
    return "" if key is None else _text_proof(key, text)


def is_signed(text: bytes, proof: str) -> bool:
    """Whether `proof` is what `sign` gave for `text`, with this user's key."""
    key = _key(make=False)
    return key is not None and hmac.compare_digest(
        _text_proof(key, text).encode(), proof.encode("utf-8", "replace")
    )


def _text_proof(key: bytes, text: bytes) -> str:
    return hmac.new(key, b"a text\0" + text, hashlib.sha256).hexdigest()


def key_path() -> Path:
    """Where this user's key lies. Raises RuntimeError: the user has no home."""
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(home).expanduser() / "training-workbench" / "record-key"


def can_vouch() -> bool:
    """Whether this user has a key, usable or not, or could have one. Nothing is written."""
    try:
        path = key_path()
    except RuntimeError:
        return False
    if path.exists():
        return True
    there = next(parent for parent in path.parents if parent.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def _proof(key: bytes, run: RunRecord, name: str, value: str) -> str:
    """Of this record alone: the marker is another one for each run."""
    text = f"{run.marker}\0{name}\0{value}"
    data = text.encode("utf-8", errors="surrogatepass")
    return hmac.new(key, data, hashlib.sha256).hexdigest()[:32]


def _key(*, make: bool) -> bytes | None:
    try:
        path = key_path()
        if make and not path.exists():
            _make(path)
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            about = os.fstat(file.fileno())
            key = file.read(_BYTES)
    except (OSError, RuntimeError):  # no home, or one that cannot be written
        return None
    private = about.st_uid == os.geteuid() and not about.st_mode & 0o077
    return key if private and len(key) == _BYTES else None


def _make(path: Path) -> None:
    """Whole or not at all, and once: of two that make it, the second one's is dropped."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, secrets.token_bytes(_BYTES))
        os.link(fresh, path)
    except FileExistsError:
        pass
    finally:
        os.close(handle)
        fresh.unlink()

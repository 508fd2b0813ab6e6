"""Live prices through gpuhunt: each provider on its own, time-limited, its failure a row.

The library is asked in one child process per provider (`gpuhunt_worker`): a hang, a crash or a
flood of log lines of one costs the others nothing. What came is kept on disk with the time it was
fetched; a provider that fails keeps its older answer with the older date.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import json
import os
import queue
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from workbench.describe.child_python import SAFE_PYTHON, import_path
from workbench.describe.gpuhunt_items import offers_of
from workbench.describe.price import Offer
from workbench.describe.price_files import fabric
from workbench.errors import UnknownNameError, UsageError

# Our short names -> gpuhunt's, where they differ.
LIBRARY_NAMES = {"lambda": "lambdalabs"}
WITHOUT_KEY = (
    *("aws", "azure", "cloudrift", "gcp", "lambda", "lium", "nebius", "oci", "runpod", "vastai"),
    *("verda", "vultr"),
)
WITH_KEY = ("crusoe", "digitalocean", "hotaisle", "jarvislabs", "seeweb")  # asked when named
_FORMAT = 1
_STARTING = 5.0  # seconds for a child to start on a busy machine, on top of its own limit
_DERIVED = ("network",)  # follows from provider and name: not stored


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderAnswer:
    """What one provider answered, or why it did not."""

    provider: str
    """Short name, as in `Offer.provider`."""
    offers: tuple[Offer, ...] = ()
    """What is known of it now: the new answer, or the kept one where there is no new one."""
    error: str | None = None
    """Why there is no new answer; None when there is."""
    fetched_at: str | None = None
    """When `offers` were fetched, ISO, UTC; None: never."""

    def document(self) -> dict[str, Any]:
        """JSON form: the number of offers instead of the offers."""
        return {
            "provider": self.provider,
            "offers": len(self.offers),
            "error": self.error,
            "fetched_at": self.fetched_at,
        }


Progress = Callable[[ProviderAnswer], None]


def refresh(
    providers: Sequence[str] | None = None,
    *,
    seconds: float = 10.0,
    on_answer: Progress | None = None,
) -> tuple[ProviderAnswer, ...]:
    """Ask the providers now, all at once, and keep their answers.

    Args:
        providers: short names; None = every one that answers without a key.
        seconds: limit for each provider; all together take little longer.
        on_answer: called in this thread with each answer as it arrives.

    Raises:
        UnknownNameError: a provider that the library does not know.
        UsageError: no positive time limit.
    """
    if not 0 < seconds <= 600:
        raise UsageError(f"The time limit must be between 0 and 600 s, not {seconds}.")
    names = WITHOUT_KEY if providers is None else tuple(dict.fromkeys(providers))
    for name in names:
        if name not in (*WITHOUT_KEY, *WITH_KEY):
            raise UnknownNameError.near("live provider", name, [*WITHOUT_KEY, *WITH_KEY])
    arrived: queue.SimpleQueue[ProviderAnswer] = queue.SimpleQueue()
    for name in names:
        # daemon: Ctrl-C leaves at once, and each child ends by its own alarm
        threading.Thread(target=_ask_into, args=(arrived, name, seconds), daemon=True).start()
    cached_answers = {answer.provider: answer for answer in cached()}
    answers: dict[str, ProviderAnswer] = {}
    for _ in names:
        answer = arrived.get()
        if answer.error is not None and answer.provider in cached_answers:
            old = cached_answers[answer.provider]
            answer = ProviderAnswer(
                provider=answer.provider,
                offers=old.offers,
                error=answer.error,
                fetched_at=old.fetched_at,
            )
        answers[answer.provider] = answer
        if on_answer is not None:
            on_answer(answer)
    _keep(
        cached_answers | {name: answer for name, answer in answers.items() if answer.error is None}
    )
    return tuple(answers[name] for name in names)


def _ask_into(arrived: queue.SimpleQueue[ProviderAnswer], name: str, seconds: float) -> None:
    try:
        arrived.put(_ask(name, seconds))
    except Exception as error:  # noqa: BLE001  (a provider's odd answer must not lose the others)
        text = f"gave an answer that cannot be used ({type(error).__name__}: {error})"
        arrived.put(ProviderAnswer(provider=name, error=text[:200]))


def _ask(provider: str, seconds: float) -> ProviderAnswer:
    """One provider's answer from a child of its own."""
    name = LIBRARY_NAMES.get(provider, provider)
    code = f"from workbench.describe.gpuhunt_worker import main; main({name!r}, {seconds!r})"
    silence = ProviderAnswer(provider=provider, error=f"no answer in {seconds:g} s")
    try:
        done = subprocess.run(
            [*SAFE_PYTHON, "-c", code],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": import_path()},
            cwd="/",
            timeout=seconds + _STARTING,
            check=False,
        )
        if done.returncode == -signal.SIGALRM:  # its own alarm: a busy host was slow to begin
            return silence
        document: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return silence
    except (OSError, ValueError):
        return ProviderAnswer(provider=provider, error="the request could not be made")
    if "error" in document:
        return ProviderAnswer(provider=provider, error=document["error"])
    now = dt.datetime.now(dt.timezone.utc)
    version = str(document["version"] or "")
    source = f"gpuhunt {document['library']}" + (f", catalogue {version}" if version else "")
    day = catalogue_day(version) or now.date().isoformat()
    offers = offers_of(provider, document["items"], date=day, source=source)
    if not offers:
        return ProviderAnswer(provider=provider, error="answered without one usable offer")
    return ProviderAnswer(
        provider=provider, offers=offers, fetched_at=now.isoformat(timespec="seconds")
    )


def catalogue_day(version: str) -> str | None:
    """Day on which a published catalogue was collected, from its version.

    >>> catalogue_day("20260818-42"), catalogue_day("latest")
    ('2026-08-18', None)
    """
    match = re.match(r"(20\d\d)(\d\d)(\d\d)(?!\d)", version)
    return "-".join(match.groups()) if match else None


def cache_file() -> Path:
    """Where answers are kept: $XDG_CACHE_HOME (or ~/.cache)/training-workbench/prices.json."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "training-workbench" / "prices.json"


def cached() -> tuple[ProviderAnswer, ...]:
    """The kept answers; empty where there are none. A damaged file or row costs only itself."""
    path = cache_file()
    try:
        return _read(path, path.stat().st_mtime_ns)
    except OSError:
        return ()


@functools.lru_cache(maxsize=2)
def _read(path: Path, _changed: int) -> tuple[ProviderAnswer, ...]:
    """The file as it was at that time: thousands of offers are parsed once."""
    try:
        document = json.loads(path.read_bytes())
        stored: dict[str, Any] = document["providers"] if document["format"] == _FORMAT else {}
        answers = [_restored(name, answer) for name, answer in stored.items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ()
    return tuple(answers)


def _restored(provider: str, stored: dict[str, Any]) -> ProviderAnswer:
    offers: list[Offer] = []
    for row in stored["offers"]:
        with contextlib.suppress(KeyError, TypeError, UsageError):
            network, _ = fabric(provider, row["name"])
            offers.append(Offer(**row | {"marks": tuple(row["marks"]), "network": network}))
    return ProviderAnswer(
        provider=provider, offers=tuple(offers), fetched_at=str(stored["fetched_at"])
    )


def _keep(answers: dict[str, ProviderAnswer]) -> None:
    """Replace the file in one step; a cache that cannot be written is not an error."""
    providers = {
        name: {
            "fetched_at": answer.fetched_at,
            "offers": [_stored(offer) for offer in answer.offers],
        }
        for name, answer in answers.items()
    }
    path = cache_file()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps({"format": _FORMAT, "providers": providers}), "utf-8")
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _stored(offer: Offer) -> dict[str, Any]:
    names = (field.name for field in fields(offer) if field.name not in _DERIVED)
    return {name: getattr(offer, name) for name in names}

"""Child process: asks one provider's prices through gpuhunt and prints them as one JSON object.

A process of its own per provider, because the library's downloads have no time limit, its logging
and its default timeout are global, and its ``load`` waits for every provider at once. The parent
ends it; should the parent be gone, its own alarm does.
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Any

FIELDS = (
    *("instance_name", "location", "price", "cpu", "memory", "gpu_count", "gpu_name"),
    *("gpu_memory", "spot", "disk_size", "flags", "provider_data"),
)


def main(provider: str, seconds: float) -> None:
    """Print ``{"items": [...], "version": …, "library": …}`` or ``{"error": …}``."""
    signal.alarm(math.ceil(seconds) + 2)
    socket.setdefaulttimeout(seconds)
    answer, sys.stdout = sys.stdout, sys.stderr  # whatever a library prints is not the answer
    try:
        document = _ask(provider)
    except Exception as error:  # noqa: BLE001  (whatever a provider's code raises is its row)
        document = {"error": reason(error, seconds)}
    json.dump(document, answer)
    answer.flush()


def _ask(provider: str) -> dict[str, Any]:
    logging.getLogger("gpuhunt").setLevel(logging.CRITICAL)
    gpuhunt = importlib.import_module("gpuhunt")
    internals = importlib.import_module("gpuhunt._internal.catalog")
    catalog = gpuhunt.Catalog(auto_reload=False)
    if provider in internals.ONLINE_PROVIDERS:
        catalog.add_provider(_online(provider).from_env())
    else:
        # load() fetches every provider of this list and waits for the slowest: one is wanted.
        internals.OFFLINE_PROVIDERS[:] = [provider]
        if "GPUHUNT_CATALOG_DIR" not in os.environ:
            catalog.load()
    items = catalog.query(provider=provider, min_gpu_count=1)
    loaded = catalog.catalog.get(provider)
    return {
        "items": [{name: getattr(item, name) for name in FIELDS} for item in items],
        "version": loaded.version if loaded else None,
        "library": importlib.import_module("gpuhunt.version").__version__,
    }


def _online(provider: str) -> Any:
    """The library's class for a provider that is asked directly."""
    module = importlib.import_module(f"gpuhunt.providers.{provider}")
    return next(
        value
        for value in vars(module).values()
        if isinstance(value, type) and getattr(value, "NAME", None) == provider
    )


def reason(error: BaseException, seconds: float) -> str:
    """What went wrong, in a few words, from the innermost cause.

    >>> reason(TimeoutError("timed out"), 10.0)
    'no answer in 10 s'
    """
    chain = list(_causes(error))
    if any(isinstance(cause, TimeoutError) or "Timeout" in type(cause).__name__ for cause in chain):
        return f"no answer in {seconds:g} s"
    if any(type(cause).__name__ == "MissingCredsError" for cause in chain):
        return f"needs a key of your account: {error}"
    status = next((code for code in map(_status, chain) if code), None)
    if status is not None:
        return f"answered HTTP {status}"
    inner = chain[-1]
    if isinstance(inner, OSError):
        return f"cannot be reached ({inner.strerror or inner})"
    return f"gave an answer that cannot be used ({type(inner).__name__}: {inner})"[:200]


def _status(error: BaseException) -> int | None:
    """HTTP status of urllib's and requests' errors."""
    code: object = getattr(error, "code", None)
    if code is None:
        code = getattr(getattr(error, "response", None), "status_code", None)
    return code if isinstance(code, int) else None


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        inner = getattr(current, "reason", None)
        fallback = inner if isinstance(inner, BaseException) else current.__context__
        current = current.__cause__ or fallback

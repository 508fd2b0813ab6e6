"""What to do next, read from what pip said before it failed."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

_NETWORK = re.compile(
    r"connection broken by|failed to establish a new connection|connection refused"
    r"|connection reset|connection aborted|name resolution|name or service not known|nodename nor"
    r"|network is unreachable|no route to host|timed out|timeouterror|proxyerror|sslerror"
    r"|certificate verify failed|max retries exceeded|there was a problem confirming the ssl",
    re.IGNORECASE,
)
_NOTHING_FOUND = re.compile(r"No matching distribution found for ([\w.\[\]-]+)")
_VERSIONS = re.compile(r"\(from versions: (.*)\)")

_UNREACHABLE = (
    "The package index could not be reached{named}: check the network, the proxy and pip's index "
    "settings (pip config list)."
)
_HINTS = (
    ("ResolutionImpossible", "Two requirements exclude each other; the lines above name them."),
    ("No space left on device", "Free some space; pip's temporary files go to $TMPDIR."),
    ("Read-only file system", "Give another place: --venv DIR, or WORKBENCH_VENV=DIR."),
    (
        "Permission denied",
        "The environment belongs to another user: run as that user, or --rebuild.",
    ),
)


def next_step(lines: Sequence[str]) -> str:
    """The most probable cause and what to do about it, in a sentence or two."""
    missing = next((match[1] for line in lines if (match := _NOTHING_FOUND.search(line))), None)
    broken = [line for line in lines if _NETWORK.search(line)]
    if missing is not None:
        return _not_found(missing, lines, broken)
    text = "\n".join(lines)
    for sign, hint in _HINTS:
        if sign in text:
            return hint
    return _UNREACHABLE.format(named="") if broken else "Read the lines above."


def _not_found(missing: str, lines: Sequence[str], broken: Sequence[str]) -> str:
    """An index that does not answer looks to pip like one that has nothing."""
    name = re.sub(r"[-_.]+", "-", missing.partition("[")[0]).lower()
    about = [line for line in broken if f"/{name}/" in line or "': /" not in line]
    if about:
        return _UNREACHABLE.format(named=f" when asked for {name}")
    if os.environ.get("PIP_NO_INDEX") and os.environ.get("PIP_FIND_LINKS"):
        return (
            f"{os.environ['PIP_FIND_LINKS']}, where alone pip may look, has no {name} that fits: "
            "if it is a wheelhouse, gather it again with this checkout (make wheelhouse)."
        )
    offered = next((match[1] for line in lines if (match := _VERSIONS.search(line))), "none")
    if offered == "none":
        return (
            f"The package index answered and has no {name} for this Python and platform: check "
            "pip's index settings (pip config list), or try another Python: make venv PYTHON=…"
        )
    return (
        f"The package index has other versions of {name}; is this Python too old or too new? "
        "Try another: make venv PYTHON=…"
    )

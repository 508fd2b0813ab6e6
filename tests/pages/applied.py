"""What ``static/changes.js`` does, in Python, for tests that read what a page was sent."""

from __future__ import annotations

from typing import Any


def applied(old: Any, change: dict[str, Any]) -> Any:
    """`old` with a change of `workbench.pages.changes`."""
    if not change:
        return old
    if "is" in change:
        return change["is"]
    if "add" in change:
        start = change.get("from", 0)
        return [*old[start : start + change["keep"]], *change["add"]]
    if "at" in change:
        inside = change["at"]
        return [applied(one, inside.get(str(at), {})) for at, one in enumerate(old)]
    gone = change.get("gone", ())
    kept = {key: value for key, value in old.items() if key not in gone}
    return kept | {key: applied(old.get(key), inner) for key, inner in change.get("in", {}).items()}


def views(sent: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The view after each snapshot; every change has the version before as its base."""
    found: list[dict[str, Any]] = []
    version = None
    for message in sent:
        if message.get("type") != "snapshot":
            continue
        if message["base"] is None:
            found.append(message["view"])
        else:
            assert message["base"] == version
            found.append(applied(found[-1], message["changes"]))
        version = message["version"]
    return found

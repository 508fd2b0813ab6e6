"""One finding for one cause: a better explanation of the same lost time replaces a general one."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from workbench.store.findings import Finding

Key = tuple[str, "int | None"]
_BETTER = {"straggler": ("input-bound", "imbalanced-work")}
"""General kind -> kinds that tell why, of the same rank."""


def better_key(key: Key, keys: Collection[Key]) -> Key | None:
    """The better explanation of the finding `key` among `keys`; None where there is none.

    >>> better_key(("straggler", 1), {("input-bound", 1), ("input-bound", None)})
    ('input-bound', 1)
    """
    kind, rank = key
    return next((better for to in _BETTER.get(kind, ()) if (better := (to, rank)) in keys), None)


def best_explained(raised: Iterable[Finding], standing: Collection[Key]) -> list[Finding]:
    """`raised` without general findings whose better explanation is raised too, or stands.

    So a cause that changes with the noise is not told in turns.
    """
    listed = list(raised)
    keys = {*standing, *(finding.key for finding in listed)}
    return [finding for finding in listed if better_key(finding.key, keys) is None]

"""When a release appeared: versions, months and years on one axis, as ``YYYY-MM``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from workbench.errors import UsageError

LATEST = "9999-12"
"""The month of a trainer whose release is not given: whatever is newest."""
_DATE = re.compile(r"(20\d\d)(?:-(\d\d?)(?!\d)|-h([12]))?")
_VERSION = re.compile(r"(\d+(?:\.\d+)*)(?:\.x|\.?(?:dev|rc|a|b|post)\d*)?(?=$|[\s(-])")


def month_of(release: str, releases: Mapping[str, str], name: str) -> str:
    """The month of a release: a date is its own, a version's stands in the trainer's table.

    A year alone is its middle, July; a version between two of the table is as the one before it;
    the first numbers of several are as the last of them.

    Raises:
        UsageError: neither a date nor a version of this trainer; the message has known ones.

    >>> month_of("4.46.1", {"4.45": "2024-09", "5.0": "2026-01"}, "transformers")
    '2024-09'
    >>> month_of("2024-H1", {}, "ms-swift"), month_of("2025", {}, "ms-swift")
    ('2024-06', '2025-07')
    """
    text = release.strip().lower().removeprefix("v")
    if not text:
        return LATEST
    if date := _DATE.match(text):
        year, month, half = date.groups()
        if half:
            return f"{year}-{6 * int(half):02}"
        if month is None:
            return f"{year}-07"
        return f"{year}-{int(month):02}" if 1 <= int(month) <= 12 else f"{year}-12"
    if version := _VERSION.match(text):
        numbers = _numbers(version[1])
        size = len(numbers)
        earlier = [release for release in releases if _numbers(release)[:size] <= numbers]
        if earlier:
            same = version[1] in releases
            return releases[version[1] if same else max(earlier, key=_numbers)]
    valid = f"one of {', '.join(releases)}, or a date" if releases else "a date"
    raise UsageError(
        f"{release!r} is not a release of {name} that is known here. Give {valid} such as 2025-06, "
        f"or --trainer {name} alone for the latest."
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))

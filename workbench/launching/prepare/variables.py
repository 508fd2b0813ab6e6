"""Names of environment variables: shells and engines take them as they are, without quotes."""

from __future__ import annotations

import re
from collections.abc import Iterable

from workbench.errors import UsageError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_variable_names(names: Iterable[str]) -> None:
    """Refuse a name that is none; scripts have them unquoted. Raises UsageError."""
    for name in names:
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} is not a valid name of an environment variable. Use letters, digits and "
                "_, not beginning with a digit."
            )

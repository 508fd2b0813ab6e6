"""The packages that a user has after `make lab`, and how a process of the tests gets just those.

The tests' own environment has more: other extras, and what `dev` brings. A notebook that needs one
of them would run here and fail on the user's machine.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import sys
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = "WORKBENCH_TEST_HIDDEN"
"""Names the file that sitecustomize.py of this folder reads what to hide from."""

sys.path.insert(0, str(ROOT / "environments"))
from venv_setup.choice import DEFAULT_EXTRAS  # noqa: E402

ALWAYS = ("pip", "setuptools", "wheel")


def distributions(extras: tuple[str, ...] = DEFAULT_EXTRAS) -> frozenset[str]:
    """Names of the project with these extras and of all that they bring along."""
    found: set[str] = set()
    waiting = [("training-workbench", frozenset(extras)), *((name, frozenset()) for name in ALWAYS)]
    done = set()
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in done:
            continue
        done.add((name, wanted))
        try:
            lines = importlib.metadata.requires(name) or ()
        except importlib.metadata.PackageNotFoundError:
            continue  # asked for on another platform, or an optional one that failed
        found.add(name)
        for requirement in map(Requirement, lines):
            if _applies(requirement, wanted):
                key = canonicalize_name(requirement.name)
                waiting.append((key, frozenset(requirement.extras)))
    return frozenset(found)


def _applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": name}) for name in ("", *extras))


@functools.cache
def provided(extras: tuple[str, ...] = DEFAULT_EXTRAS) -> dict[str, bool]:
    """{importable top-level name: whether the user has it}."""
    users = distributions(extras)
    return {
        module: any(canonicalize_name(owner) in users for owner in owners)
        for module, owners in importlib.metadata.packages_distributions().items()
    }


def variables(folder: Path, *more: str) -> dict[str, str]:
    """What to add to a process's environment so that it and its children have the user's packages.

    Args:
        folder: an existing directory for the list.
        more: extras that the user has been told to install beside those.
    """
    extras = (*DEFAULT_EXTRAS, *more)
    hidden = folder / "hidden.json"
    users = distributions(extras)
    names = {canonicalize_name(one.metadata["Name"]) for one in importlib.metadata.distributions()}
    hidden.write_text(
        json.dumps(
            {
                "modules": sorted(name for name, has in provided(extras).items() if not has),
                "distributions": sorted(names - users),
            }
        )
    )
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return {VARIABLE: str(hidden), "PYTHONPATH": os.pathsep.join(filter(None, paths))}

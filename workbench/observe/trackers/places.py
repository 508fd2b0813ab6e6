"""Which trackers there are, what they need, and where they write."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from workbench.errors import UnknownNameError, UsageError, pip_install
from workbench.store.layout import RunPaths

# name -> what its package is imported as, and what pip installs
_PACKAGES = {
    "mlflow": {"mlflow": "mlflow-skinny", "sqlalchemy": "sqlalchemy", "alembic": "alembic"},
    "tensorboard": {"tensorboard": "tensorboard"},
    "trackio": {"trackio": "trackio"},
    "wandb": {"wandb": "wandb"},
}


def names() -> tuple[str, ...]:
    """The trackers that can be fed, installed or not."""
    return tuple(_PACKAGES)


def check(name: str) -> None:
    """Make sure that `name` is a tracker and its package is installed; imports nothing.

    Raises:
        UsageError: it is not; the message has the pip line.
    """
    if name not in _PACKAGES:
        raise UnknownNameError.near("tracker", name, _PACKAGES)
    missing = [package for module, package in _PACKAGES[name].items() if find_spec(module) is None]
    if missing:
        raise UsageError(
            f"The tracker {name} needs {' and '.join(missing)}, not installed here. Install it: "
            f"{pip_install(*missing)} (all four trackers "
            "come with training-workbench[trackers])."
        )


def default_folder(paths: RunPaths, name: str) -> Path:
    """Where the tracker writes unless told otherwise: inside the run directory."""
    return paths.directory / "trackers" / name


def log_path(paths: RunPaths, name: str) -> Path:
    """What the feeding process did and why it failed."""
    return paths.logs / f"tracker-{name}.log"

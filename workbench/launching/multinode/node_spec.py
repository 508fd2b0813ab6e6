"""What one machine starts for an attempt: node 0's command and environment, fitted to it.

The other machine may have its Python, this package and the run directory in other places; it takes
its own. Secrets are not in run.json: they come from the machine's own environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workbench import recipes
from workbench.errors import HostError
from workbench.launching.capture import SITE_FOLDER
from workbench.launching.prepare.launcher_process import inherited
from workbench.launching.prepare.placement import (
    NAMES,
    Placement,
    interface_towards,
    recorded_for_ranks,
)
from workbench.launching.start.launch_spec import check_not_redacted, recorded_spec
from workbench.store.layout import RunPaths
from workbench.store.node_schema import NodeOrder
from workbench.store.processes import MARKER
from workbench.store.run_record import RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStart:
    """A launcher to be started on this machine."""

    argv: list[str]
    """Its command."""
    environment: dict[str, str]
    """All of its environment."""
    folder: str
    """Its working directory."""


def marker_of(run: RunRecord, node: int) -> str:
    """The mark of a run's processes on one machine.

    Each has its own: machines that are containers of one host see one another's processes, and
    none may end those of another.
    """
    return run.marker if node == 0 else f"{run.marker}.{node}"


def node_start(paths: RunPaths, run: RunRecord, order: NodeOrder, node: int) -> NodeStart:
    """What `order` (nodes/order.json) means on machine `node`.

    Raises:
        UsageError: a secret is missing from this machine's environment.
        HostError: the working directory or the script is not here.
    """
    base = recorded_spec(run)
    address, moved = order["address"], _Moved(paths, base["launcher"])
    launcher = _own_script(run, [moved.path(word) for word in base["launcher"]])
    where = Placement(nodes=run.nodes, node_rank=node, address=address, port=order["port"])
    arguments = [moved.path(word) for word in order["arguments"]]
    check_not_redacted(run, arguments)
    _check_here(base["working_directory"], launcher[-1])
    environment = {**inherited(), **base["environment"]}
    environment |= {name: moved.path(value) for name, value in order["environment"].items()}
    environment |= {
        MARKER: marker_of(run, node),
        "WORKBENCH_RUN_DIR": str(paths.directory),
        "WORKBENCH_FIRST_STEP": str(order["first_step"]),
        "PYTHONPATH": _python_path(base["environment"]),
        **interfaces(run, address),
    }
    return NodeStart(
        argv=[sys.executable, *where.of(launcher)[1:], *recorded_for_ranks(run, arguments)],
        environment=environment,
        folder=base["working_directory"],
    )


def interfaces(run: RunRecord, address: str) -> dict[str, str]:
    """The variables that name the interface towards node 0, unless this machine's set them."""
    names = NAMES[:1] if run.device == "cpu" else NAMES
    interface = interface_towards(address)
    values = {name: os.environ.get(name, interface) for name in names}
    return {name: value for name, value in values.items() if value is not None}


class _Moved:
    """Paths below node 0's run directory, as this machine sees it."""

    def __init__(self, paths: RunPaths, launcher: list[str]) -> None:
        config = Path(launcher[launcher.index("--config_file") + 1])
        self._there = str(config.parent.parent)
        self._here = str(paths.directory)

    def path(self, word: str) -> str:
        below = word == self._there or word.startswith(f"{self._there}/")
        return self._here + word[len(self._there) :] if below else word


def _own_script(run: RunRecord, launcher: list[str]) -> list[str]:
    """A recipe is started from this installation."""
    recipe = recipes.recipes().get(run.recipe or "")
    return launcher if recipe is None else [*launcher[:-1], str(recipe.path)]


def _check_here(folder: str, script: str) -> None:
    if not Path(folder).is_dir():
        raise HostError(
            f"the working directory {folder} of node 0 is not on this machine. Launch from a "
            "folder that all nodes see."
        )
    if not Path(folder, script).is_file():
        raise HostError(
            f"the script {script} is not on this machine. Keep it on storage that all nodes see."
        )


def _python_path(environment: Mapping[str, str]) -> str:
    """The hook of this installation in place of node 0's, then what follows it."""
    first, _, rest = environment.get("PYTHONPATH", "").partition(os.pathsep)
    user_path = rest if Path(first).name == SITE_FOLDER.name else os.pathsep.join([first, rest])
    return os.pathsep.join(filter(None, [str(SITE_FOLDER), user_path.strip(os.pathsep)]))

"""Messages about findings and ends of runs: Slack, Discord, ntfy, e-mail, any webhook.

Where they go is kept once per user (`targets`), never in a run: an address is a secret. A run keeps
the names. A process of its own follows the run's files and sends, so it can neither slow training
down nor end it; Apprise knows the services.

    python -m workbench.notifying RUN_DIRECTORY --to NAME,NAME
"""

from __future__ import annotations

from workbench.notifying.targets import Target, chosen, read_targets, write_targets
from workbench.store.layout import RunPaths
from workbench.store.processes import SAFE_PYTHON

__all__ = ["Target", "chosen", "follow_command", "read_targets", "write_targets"]


def follow_command(paths: RunPaths, names: list[str]) -> list[str]:
    """The process that follows the run to its end and sends what there is to tell."""
    command = [*SAFE_PYTHON, "-m", "workbench.notifying", str(paths.directory)]
    return [*command, "--to", ",".join(names)]

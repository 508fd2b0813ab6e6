"""The command line: ``workbench …``. `app` holds the commands, `live` the terminal view."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Entry point; loads Typer and Rich only when a command really runs."""
    try:
        from workbench.cli.app import run_app  # noqa: PLC0415
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted before anything was done.\n")
        sys.exit(130)
    run_app()

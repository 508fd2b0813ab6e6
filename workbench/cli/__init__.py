"""The command line: ``workbench …``. `app` holds the commands, `live` the terminal view."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Entry point; loads Typer and Rich only when a command really runs."""
    from workbench.cli.app import run_app  # noqa: PLC0415

    run_app()

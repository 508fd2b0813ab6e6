"""The command line: ``workbench …``.

`entry` is the application, `commands` the list of its commands, `live` the terminal view.
"""

from __future__ import annotations

import sys

from workbench.cli import shadowing

__all__ = ["main"]


def main() -> None:
    """Entry point; loads Typer, and a command's own parts, only when a command really runs."""
    sys.meta_path.insert(0, shadowing.PackageGuard)
    try:
        from workbench.cli.entry import run_app  # noqa: PLC0415

        run_app()
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted before any work was done.\n")
        sys.exit(130)
    except (Exception, SystemExit) as error:
        text = shadowing.explanation(error)
        if text is None:
            raise
        sys.stderr.write(text)
        sys.exit(1)

"""The commands that have a file of their own, in the order in which ``--help`` lists them."""

from __future__ import annotations

import typer

from workbench.cli.cost import cost
from workbench.cli.listings import gpus_command, models_command
from workbench.cli.memory import memory
from workbench.cli.plan import plan
from workbench.cli.prices import prices_command


def register(app: typer.Typer) -> None:
    """Add them to the application."""
    app.command()(memory)
    app.command()(cost)
    app.command()(plan)
    app.command("prices")(prices_command)
    app.command("models")(models_command)
    app.command("gpus")(gpus_command)

"""The commands that have a file of their own, in the order in which ``--help`` lists them."""

from __future__ import annotations

import typer

from workbench.cli.calibrating import calibrate
from workbench.cli.comparing import compare
from workbench.cli.cost import cost
from workbench.cli.exporting import export
from workbench.cli.labelling import archive, delete, note, tag
from workbench.cli.listings import gpus_command, models_command
from workbench.cli.memory import memory
from workbench.cli.nodes import node, submit
from workbench.cli.plan import plan
from workbench.cli.prices import prices_command
from workbench.cli.profiling import profile
from workbench.cli.recovery import checkpoints, diagnose, resume
from workbench.cli.scaling import scale
from workbench.cli.studies import study
from workbench.cli.tracking import track


def register(app: typer.Typer) -> None:
    """Add them to the application."""
    app.command()(resume)
    app.command()(checkpoints)
    app.command()(diagnose)
    app.command()(track)
    app.command()(memory)
    app.command()(cost)
    app.command()(plan)
    app.command("prices")(prices_command)
    app.command("models")(models_command)
    app.command("gpus")(gpus_command)
    app.command()(calibrate)
    app.command()(scale)
    app.add_typer(study, name="study")
    app.command()(profile)
    app.command()(compare)
    app.command()(tag)
    app.command()(note)
    app.command()(archive)
    app.command()(delete)
    app.command()(export)
    app.command()(submit)
    app.command()(node)

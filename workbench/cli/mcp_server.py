"""``workbench mcp``: the commands as tools of the Model Context Protocol, over stdio."""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

from typing import Annotated

import typer

import workbench as wb
from workbench.cli.describing import with_options
from workbench.cli.mcp_limits import AgentLimits
from workbench.cli.terminal import StoreOption
from workbench.describe.option import declared
from workbench.errors import pip_install
from workbench.store.runs import Store

_LIMITS = declared(AgentLimits)


@with_options
def mcp(
    *,
    allow_launch: Annotated[
        bool, typer.Option("--allow-launch", help="Let agents launch, stop and resume runs.")
    ] = False,
    max_usd: Annotated[float | None, _LIMITS["max_usd"].option] = None,
    max_hours: Annotated[float | None, _LIMITS["max_hours"].option] = None,
    store: StoreOption = None,
) -> None:
    """Serve agents over stdio (Model Context Protocol): reading, and starting within limits."""
    limits = AgentLimits(allow_launch=allow_launch, max_usd=max_usd, max_hours=max_hours)
    try:
        from workbench.cli.mcp_tools import server  # noqa: PLC0415  (needs the extra)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "mcp":
            raise
        raise wb.HostError(
            "The package mcp (2.3 or later) is not installed. Install it: "
            f"{pip_install('training-workbench[agents]')}"
        ) from error
    server(limits, str(Store(store).root)).run("stdio")

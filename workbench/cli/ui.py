"""``workbench ui``: the dashboards in a browser, without Jupyter."""

from __future__ import annotations

import secrets
import sys
from typing import Annotated

import typer

from workbench.cli.describing import with_options
from workbench.cli.tables import JsonOption, print_json
from workbench.cli.terminal import StoreOption, console, sigterm_as_interrupt
from workbench.errors import HostError, pip_install
from workbench.store.runs import Store

_PORT = 8787
_HOST_HELP = (
    "Address to listen at. Any other than 127.0.0.1 makes reading need the token, too; without TLS "
    "the network can read along."
)
_NAME_HELP = "A name by which a proxy reaches this server. May be repeated."


@with_options
def ui(
    *,
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.", min=0, max=65535)] = _PORT,
    host: Annotated[str, typer.Option(help=_HOST_HELP)] = "127.0.0.1",
    allow_name: Annotated[list[str] | None, typer.Option(metavar="NAME", help=_NAME_HELP)] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show runs and their live dashboards in a browser, without Jupyter.

    Without the token the page only reads. Ctrl-C ends it; runs continue.
    """
    from workbench.pages.server import http, static_files  # noqa: PLC0415 - --help needs none of it

    root, token = Store(store).root, secrets.token_hex(24)
    static_files.folder()
    try:
        server = http.PageServer(root, host, port, token=token, names=allow_name or [])
    except OSError as error:
        raise HostError(
            f"Port {port} of {host} cannot be used: {error.strerror or error}. Choose another: "
            "workbench ui --port 0"
        ) from error
    url_host = f"[{host}]" if ":" in host else host
    url = f"http://{url_host}:{server.server_port}/"
    with sigterm_as_interrupt():
        if as_json:
            print_json({"url": url, "token": token, "store": str(root)})
            sys.stdout.flush()
        else:
            _say(url, token, str(root), reads=server.access.open_to_own)
        http.serve(server)


def _say(url: str, token: str, root: str, *, reads: bool) -> None:
    from workbench.pages.server.static_files import plotly_file  # noqa: PLC0415

    lines = [f"Runs of {root}"]
    lines += [f"Read only:       {url}"] if reads else []
    lines += [f"Stop and resume: {url}?token={token}", "Ctrl-C ends the page; runs continue."]
    if plotly_file() is None:
        lines.append(f"Charts need plotly.js: {pip_install('plotly>=6.1')}")
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)

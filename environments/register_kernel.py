"""Makes the project's environment a kernel of the JupyterLab that already runs on this machine.

Standard library only, run by the environment's Python (setup_venv.py --kernel does it too).
Why a pod needs it, and what it cannot do by itself, stands in environments/pods.md.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).resolve().parent.parent
START = ROOT / "notebooks" / "00_start_here.ipynb"
KERNEL_NAME = "training-workbench"
SERVER_PROGRAMS = frozenset({"jupyter-lab", "jupyter-server", "jupyter-notebook"})
SERVER_MODULES = frozenset({"jupyterlab", "jupyter_server", "notebook"})

FRONT_ENDS = {
    "anywidget": "anywidget",
    "jupyterlab_widgets": "@jupyter-widgets/jupyterlab-manager",
    "plotly": "jupyterlab-plotly",
}
"""Package -> directory below labextensions/ that its JavaScript half is served from.

The kernel's Python has the other half; a server without these shows an empty box for a widget, and
nothing for a plotly figure.
"""

_ASK_SERVER = """
import json, sys
from pathlib import Path
from jupyter_core.paths import jupyter_data_dir, jupyter_path, jupyter_runtime_dir
record = Path(jupyter_runtime_dir(), "jpserver-" + sys.argv[1] + ".json")
info = json.loads(record.read_text()) if record.is_file() else {}
print("FOUND " + json.dumps({
    "data_dirs": [jupyter_data_dir(), *(d for d in jupyter_path() if d != jupyter_data_dir())],
    "root_dir": info.get("root_dir"),
    "base_url": info.get("base_url"),
}))
"""


@dataclass(frozen=True)
class Server:
    """A running Jupyter server."""

    pid: int
    """Of the server's process."""
    python: str
    """Its interpreter, as it was started (a link of an environment stays that link)."""
    environment: dict[str, str] = field(repr=False, default_factory=dict)
    """Its environment variables; they decide where it looks. Never printed: the token is there."""


@dataclass(frozen=True)
class View:
    """What that server sees."""

    data_dirs: tuple[str, ...]
    """Where it looks for kernels/ and labextensions/; the user's own directory first."""
    root_dir: str | None = None
    """The directory its file browser starts in; None: its record was not readable."""
    base_url: str = "/"
    """Prefix of its addresses."""

    def lacks(self) -> list[str]:
        """Packages whose front-end half this server cannot serve."""
        return [
            package
            for package, extension in FRONT_ENDS.items()
            if not any(Path(d, "labextensions", extension).is_dir() for d in self.data_dirs)
        ]

    def path_of(self, file: Path) -> str | None:
        """The path part of the address that opens the file; None: it is outside the root."""
        if self.root_dir is None or not file.is_relative_to(Path(self.root_dir).resolve()):
            return None
        inside = file.relative_to(Path(self.root_dir).resolve()).as_posix()
        return f"{self.base_url.rstrip('/')}/lab/tree/{quote(inside)}"


def running_servers(proc: Path = Path("/proc")) -> list[Server]:
    """Jupyter servers among the processes of this machine that we may look into."""
    servers = []
    for entry in sorted(proc.glob("[0-9]*"), key=lambda entry: int(entry.name)):
        with contextlib.suppress(OSError):
            argv = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if not is_server(argv):
                continue
            pairs = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
            environment = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
            servers.append(Server(int(entry.name), argv[0], environment))
    return servers


def servers_of_others(proc: Path = Path("/proc")) -> list[str]:
    """Jupyter servers that we may not look into, for people: ``process 12 of root``."""
    others: list[str] = []
    for entry in sorted(proc.glob("[0-9]*"), key=lambda entry: int(entry.name)):
        with contextlib.suppress(OSError):
            argv = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if is_server(argv) and not os.access(entry / "environ", os.R_OK):
                others.append(f"process {entry.name} of {_owner(entry)}")
    return others


def _owner(path: Path) -> str:
    try:
        return path.owner()
    except KeyError:  # a number without a name
        return f"user {path.stat().st_uid}"


def is_server(argv: list[str]) -> bool:
    """Whether that command line is "python …/jupyter-lab …" or "python -m jupyterlab …"."""
    if len(argv) < 2 or not Path(argv[0]).name.startswith("python"):
        return False
    rest = [word for word in argv[1:] if word]
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        rest.pop(0)
    if rest[:1] == ["-m"]:
        return len(rest) > 1 and rest[1].partition(".")[0] in SERVER_MODULES
    return bool(rest) and Path(rest[0]).name in SERVER_PROGRAMS


def view_of(server: Server) -> View:
    """Asks the server's own Python, in the server's own environment."""
    argv = [server.python, "-c", _ASK_SERVER, str(server.pid)]
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=60, check=False, env=server.environment
    )
    for line in done.stdout.splitlines():
        if line.startswith("FOUND "):
            answer = json.loads(line.removeprefix("FOUND "))
            base = answer["base_url"] or "/"
            return View(tuple(answer["data_dirs"]), answer["root_dir"], base)
    last = (done.stderr.strip().splitlines() or ["no output"])[-1]
    sys.exit(
        f"register_kernel: {server.python} (process {server.pid}) did not say where it looks for "
        f"kernels: {last}\nNext: give the directory: --data-dir DIR (jupyter --paths lists them)."
    )


def register(data_dirs: tuple[str, ...], uid: int | None = None) -> Path:
    """Writes the kernel's specification into the first of the directories that can be written.

    Args:
        data_dirs: where the server looks, in its order.
        uid: owner of the new files, when we are root and the server is not.
    """
    spec = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Training workbench",
        "language": "python",
        "metadata": {"debugger": True},
        # So that "!workbench …" and "!accelerate …" in a cell start this environment's.
        "env": {"PATH": f"{Path(sys.executable).parent}{os.pathsep}${{PATH}}"},
    }
    tried = []
    for data_dir in data_dirs:
        target = Path(data_dir, "kernels", KERNEL_NAME)
        try:
            target.mkdir(parents=True, exist_ok=True)
            temporary = target / f"kernel.json.{os.getpid()}"
            temporary.write_text(json.dumps(spec, indent=1) + "\n", "utf-8")
            temporary.chmod(0o644)
            temporary.replace(target / "kernel.json")
            if uid is not None and os.geteuid() == 0:
                for path in (target / "kernel.json", target, target.parent):
                    os.chown(path, uid, -1)
        except OSError as error:
            tried.append(f"{target}: {error.strerror}")
        else:
            return target / "kernel.json"
    sys.exit(
        "register_kernel: no directory could be written:\n  "
        + "\n  ".join(tried)
        + "\nNext: run it as the user that runs JupyterLab, or give a directory: --data-dir DIR."
    )


def install_command(server: Server, packages: list[str]) -> list[str]:
    """The one command that gives the server what it lacks, in the versions this kernel has."""
    exact = [f"{name}=={importlib.metadata.version(name)}" for name in packages]
    house = os.environ.get("WORKBENCH_WHEELHOUSE")
    where = ["--no-index", "--find-links", house] if house else []
    return [server.python, "-m", "pip", "install", "--no-deps", *where, *exact]


def report(server: Server, view: View, *, into_server: bool) -> int:
    """Says what the server lacks (or installs it) and which address to open."""
    status = 0
    packages = view.lacks()
    if packages:
        command = install_command(server, packages)
        lacking = " and ".join(packages)
        print(f"The server's Python ({server.python}) lacks the front-end half of {lacking}:")
        if into_server:
            status = subprocess.run(command, check=False).returncode
            print("Installed; reload the page." if status == 0 else "pip refused; see above.")
        else:
            print(
                "  widgets and figures stay empty. This one line changes it; then reload the page:"
            )
            print(f"  {shlex.join(command)}")
    path = view.path_of(START)
    if path:
        print(f"Open in the browser, after the host's address: {path}")
    elif view.root_dir:
        print(
            f"{START} lies outside the server's root {view.root_dir}: move the checkout below it."
        )
    return status


def _no_server(others: list[str]) -> str:
    if not others:
        return "No other Python's JupyterLab runs here; `make lab` starts this one's."
    return (
        f"JupyterLab runs here as another user ({', '.join(others)}) and does not look there.\n"
        "Next: run this as that user, or give a directory that it looks in: "
        f"{shlex.join([sys.executable, str(Path(__file__).resolve())])} --data-dir DIR "
        "(jupyter --paths lists them)."
    )


def main() -> int:
    """Returns the exit status: 0 done, else that of a failed installation into the server."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data-dir", help="register here, whatever server runs")
    parser.add_argument(
        "--into-server",
        action="store_true",
        help="also install the missing front-end halves into the server's Python",
    )
    options = parser.parse_args()
    here = Path(sys.executable).parent
    everyone = running_servers()
    servers = [server for server in everyone if Path(server.python).parent != here]
    if options.data_dir or not servers:
        home = os.environ.get("JUPYTER_DATA_DIR") or str(Path.home() / ".local/share/jupyter")
        print(f"Kernel registered: {register((options.data_dir or home,))}")
        if not servers:
            print(_no_server(servers_of_others()))
        return 0
    status = 0
    for server in servers:
        view = view_of(server)
        uid = Path(f"/proc/{server.pid}").stat().st_uid
        print(f"JupyterLab found: process {server.pid}, {server.python}")
        print(f"Kernel registered: {register(view.data_dirs, uid)}")
        status = report(server, view, into_server=options.into_server) or status
    return status


if __name__ == "__main__":
    sys.exit(main())

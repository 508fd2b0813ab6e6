"""The command: parses, plans, runs the stages, says in one line what happened."""

from __future__ import annotations

import argparse
import difflib
import errno
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from venv_setup import install, optional, packages, probe, repair, wheelhouse
from venv_setup import state as states
from venv_setup.choice import (
    DEFAULT_EXTRAS,
    INDEX_VARIABLE,
    MODES,
    TORCH_EXTRA,
    TorchChoice,
    decide,
)
from venv_setup.console import Runner, say
from venv_setup.errors import SetupError
from venv_setup.plan import Plan, SetupRequest, make_plan

SCRIPTS = Path(__file__).resolve().parent
ROOT = SCRIPTS.parent.parent
VENV_VARIABLE = "WORKBENCH_VENV"
"""Environment variable naming another place for the environment; --venv goes first."""
_NOT_WRITABLE = {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR}


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 ready, 1 failed, 2 wrong usage, 130 interrupted."""
    options = _parse(argv)
    place = options.venv or os.environ.get(VENV_VARIABLE) or options.project / ".venv"
    venv = Path(os.path.abspath(os.path.expanduser(place)))  # noqa: PTH100, PTH111 - a link stays a link
    project = options.project.resolve()
    signal.signal(signal.SIGTERM, _as_interrupt)
    try:
        _leave(venv, argv)
        wanted = _wanted(project, options)
        if options.make_wheelhouse:
            own, name = options.torch == "own", _project_name(project)
            wheelhouse.make(project, options.make_wheelhouse, name, wanted.extras, torch=own)
            return 0
        if options.wheelhouse:
            wheelhouse.use(options.wheelhouse, wanted.extras)
            wanted = replace(wanted, machine=probe.quick_look(), wheelhouse=options.wheelhouse)
        set_up(project, venv, wanted)
        if options.kernel:
            script = SCRIPTS.parent / "register_kernel.py"
            return subprocess.run([repair.python_of(venv), script], check=False).returncode
    except SetupError as error:
        print(f"\nsetup_venv: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"\nsetup_venv: {_cannot_write(error, venv)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        again = "run the same command again, it goes on from here"
        print(f"\nsetup_venv: interrupted; {again}.", file=sys.stderr)
        return 130
    return 0


def set_up(project: Path, venv: Path, wanted: SetupRequest) -> None:
    """Makes the environment what is wanted, doing only what is left to do.

    Raises:
        SetupError: it cannot be; the state file remembers how far it came.
    """
    python = f"{sys.version_info[0]}.{sys.version_info[1]} {sys.base_prefix}"
    state = states.load(venv)
    plan = _plan(venv, python, state, wanted)
    if plan.nothing and state is not None:
        say(f"{venv} is ready ({', '.join(state.extras)}; torch {state.torch.get('installed')})")
        _say_missing(state)
        return
    with states.lock(project, waiting=lambda: say("Another set-up is at work here; waiting …")):
        for pid in repair.end_leftovers(venv):
            say(f"  ended process {pid}, left over from an interrupted set-up")
        state = states.load(venv)  # the one that held the lock may have done everything
        plan = _plan(venv, python, state, wanted)
        if not plan.nothing:
            _carry_out(project, venv, plan, wanted, state)


def _plan(venv: Path, python: str, state: states.State | None, wanted: SetupRequest) -> Plan:
    fault = repair.fault(venv, python, state)
    damaged = packages.damaged(venv) if fault is None else {}
    broken_pip = next((line for line in damaged if line.startswith("pip==")), None)
    if broken_pip is not None:
        fault = f"its {broken_pip} is damaged: {damaged[broken_pip]}"
    waits = [name for name in optional.EXTRAS if state and optional.waits(state, name, time.time())]
    return make_plan(state, fault, wanted, damaged=damaged, waits=waits)


def _say_missing(state: states.State) -> None:
    for line in optional.missing_lines(state):
        say(line)


def _cannot_write(error: OSError, venv: Path) -> str:
    """A read-only or full disk, or another user's directory, in a sentence."""
    full = error.errno in {errno.ENOSPC, errno.EDQUOT}
    if not full and error.errno not in _NOT_WRITABLE:
        raise error
    where = error.filename or venv
    return (
        f"{where} cannot be written: {error.strerror}.\nNext: "
        + ("free some space, or give" if full else "give")
        + f" the environment another place and run the same command again: "
        f"{VENV_VARIABLE}=DIR before it, or --venv DIR."
    )


def _carry_out(
    project: Path, venv: Path, plan: Plan, wanted: SetupRequest, old: states.State | None
) -> None:
    began = time.monotonic()
    choice = _choice(plan, wanted, old)
    rebuild = plan.rebuild or _wrong_view(venv, choice)
    state = old if old is not None and not rebuild else states.State()
    say(f"{venv}: " + (f"making it ({rebuild})" if rebuild else str(plan.install)))
    say(choice.line())
    name = _project_name(project)
    job = install.Job(project, venv, state, choice, plan.extras, name, Runner(venv))
    state.venv, state.mode, state.machine = str(venv), wanted.mode, dict(wanted.machine)
    state.inputs = dict(wanted.inputs)
    if rebuild:
        install.make_environment(job)
    elif plan.repair:
        forgotten = packages.forget(venv)
        if forgotten:
            say(f"  half-installed or damaged, will be installed again: {', '.join(forgotten)}")
            install.reinstall(job, forgotten)
    install.install_torch(job)
    install.install_project(job, optional.required(plan.extras))
    optional.install(job)
    install.verify(job)
    _say_missing(state)
    say(f"Ready in {time.monotonic() - began:.0f} s: {venv}")


def _project_name(project: Path) -> str:
    text = (project / "pyproject.toml").read_text("utf-8")
    match = re.search(r'^name\s*=\s*"([^"]+)"', text, re.MULTILINE)
    if match is None:
        raise SetupError(f"{project}/pyproject.toml names no project.", "Is the checkout whole?")
    return match[1]


def _choice(plan: Plan, wanted: SetupRequest, old: states.State | None) -> TorchChoice:
    if not plan.choose_torch and not plan.rebuild and old is not None:
        recorded = {name: value for name, value in old.torch.items() if name != "installed"}
        return TorchChoice(**recorded)  # type: ignore[arg-type]
    machine = probe.look(sys.executable)
    choice = decide(machine, mode=wanted.mode, wants_torch=TORCH_EXTRA in plan.extras)
    if wanted.wheelhouse is not None:
        wheelhouse.check_torch(wanted.wheelhouse, choice.kind)
    return choice


def _wrong_view(venv: Path, choice: TorchChoice) -> str | None:
    """An environment that shows or hides the system's packages cannot be turned into the other."""
    if choice.kind == "system" and not repair.sees_system_packages(venv):
        return "the system's torch is to be used, and this one cannot see it"
    if choice.kind == "own" and repair.sees_system_packages(venv):
        return "it sees the system's packages and is to have its own torch"
    return None


def _wanted(project: Path, options: argparse.Namespace) -> SetupRequest:
    pyproject = project / "pyproject.toml"
    if not pyproject.is_file():
        raise SetupError(f"--project {project}: it has no pyproject.toml.", "Name the checkout.")
    extras = tuple(name for name in re.split(r"[,\s]+", options.extras) if name)
    _check_extras(extras, pyproject.read_text("utf-8"))
    return SetupRequest(
        extras=extras,
        mode=options.torch,
        machine=probe.quick_look(),
        inputs=states.digests(project, SCRIPTS),
        rebuild=options.rebuild,
        retry=options.retry,
    )


def _check_extras(extras: Sequence[str], pyproject: str) -> None:
    """Only warned about by pip, which then installs less than was asked for."""
    section = pyproject.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    allowed = re.findall(r"^([\w.-]+)\s*=\s*\[", section, re.MULTILINE)
    for name in extras:
        if name not in allowed:
            near = difflib.get_close_matches(name, allowed, n=1)
            meant = f" Did you mean {near[0]!r}?" if near else ""
            raise SetupError(
                f"--extras {name}: pyproject.toml has no such extra.{meant}",
                f"Choose from: {', '.join(allowed) or 'none'}.",
            )


def _leave(venv: Path, argv: Sequence[str] | None) -> None:
    """Run by the environment's own Python (it is activated), continue with the one that made it."""
    if Path(sys.prefix).resolve() != venv.resolve():
        return
    base = getattr(sys, "_base_executable", None)
    if not base or Path(base).resolve().is_relative_to(venv.resolve()):
        raise SetupError(
            f"{sys.executable} is the environment's own Python and cannot rebuild itself.",
            "Name the system's: make PYTHON=/usr/bin/python3 …",
        )
    script = str(SCRIPTS.parent / "setup_venv.py")
    os.execv(base, [base, script, *(sys.argv[1:] if argv is None else argv)])  # noqa: S606 - argv list


def _as_interrupt(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="setup_venv.py",
        description="Makes the project's virtual environment, or finishes or repairs it.",
        epilog=f"Environment: {INDEX_VARIABLE}=URL names another index for torch alone, "
        f"{VENV_VARIABLE}=DIR is another place for the environment. "
        "Run it again whenever in doubt: with nothing to do it takes less than a second.",
    )
    parser.add_argument(
        "--extras",
        default=",".join(DEFAULT_EXTRAS),
        help="comma-separated extras (default: %(default)s)",
    )
    parser.add_argument(
        "--torch",
        default="auto",
        metavar="|".join(MODES),
        help="auto: a system torch built for a GPU is used and kept, else one is installed",
    )
    parser.add_argument("--rebuild", action="store_true", help="make it from nothing")
    parser.add_argument(
        "--retry", action="store_true", help="try optional extras again that failed lately"
    )
    parser.add_argument(
        "--wheelhouse",
        type=Path,
        default=os.environ.get(wheelhouse.VARIABLE) or None,
        metavar="DIR",
        help=f"install from the wheels there alone (default: ${wheelhouse.VARIABLE})",
    )
    parser.add_argument(
        "--make-wheelhouse",
        type=Path,
        metavar="DIR",
        help="gather the wheels for such a machine there, without torch unless --torch own",
    )
    parser.add_argument("--kernel", action="store_true", help="also run register_kernel.py")
    parser.add_argument("--project", type=Path, default=ROOT, help="the checkout (default: this)")
    parser.add_argument("--venv", type=Path, help="the environment (default: PROJECT/.venv)")
    return parser.parse_args(argv)

"""``launch.sh``: what every machine of an engine runs, and how it is prepared.

The engine's own file says which machine it is in three variables; all else is the same everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

from workbench import recipes
from workbench.describe.supported import backend
from workbench.engines.commands import launch_script
from workbench.engines.job import EngineJob

LAUNCH = "launch.sh"
_HEAD = """\
#!/usr/bin/env bash
# One machine of {name}: {nodes} x {ranks} ranks, {strategy}.
# The engine sets NODE_RANK, MASTER_ADDR and MASTER_PORT (by hand: 0, this machine's address, any).
set -euo pipefail
cd "$(dirname "$0")"
: "${{NODE_RANK:?which machine this is, from 0}}" "${{MASTER_ADDR:?address of machine 0}}"
: "${{MASTER_PORT:={port}}}"
"""
_GRACE_SECONDS = 120  # from the end of the time to the kill
_SAVING = ("--checkpoint-every", "--checkpoint-minutes", "--checkpoint-auto")


def launch_text(job: EngineJob) -> str:
    """The script, with the launcher's config files inside; values of variables stay outside.

    A recipe that saves continues from the newest whole checkpoint, and begins where there is none:
    so the same file serves the first start and every later one.
    """
    body = launch_script(
        replace(job, setup=()),
        address='"$MASTER_ADDR"',
        port='"$MASTER_PORT"',
        node_rank='"$NODE_RANK"',
        resume=saves(job),
        exports=False,
    )
    head = _HEAD.format(
        name=_in_one_line(job.name),
        nodes=job.nodes,
        ranks=job.processes_per_node,
        strategy=_in_one_line(job.strategy.name),
        port=job.port,
    )
    return head + body


def _in_one_line(text: str) -> str:
    """As a comment holds it: what follows an end of line would be a command."""
    return " ".join(text.split())


def option_names(arguments: Iterable[str]) -> set[str]:
    """The options among them, however their values are given.

    >>> sorted(option_names(["--steps", "3", "--size=2"]))
    ['--size', '--steps', '3']
    """
    return {argument.partition("=")[0] for argument in arguments}


def saves(job: EngineJob) -> bool:
    """Whether a recipe was told to save."""
    flags = option_names(job.arguments)
    if job.script not in recipes.recipes() or "--resume" in flags:
        return False
    return bool(job.checkpoint_every) or bool(flags & set(_SAVING))


def packages(job: EngineJob, *, torch: bool) -> tuple[str, ...]:
    """What pip installs on the machines, in the versions that are here, where they are."""
    all_recipes = recipes.recipes()
    needs = list(all_recipes[job.script].needs) if job.script in all_recipes else []
    splits = all_recipes[job.script].splits if job.script in all_recipes else None
    names = [*(["torch"] if torch else []), "accelerate", "numpy", *needs]
    if backend(job.strategy, splits) == "deepspeed":
        names.append("deepspeed")
    # numpy is not: its releases each need another Python, and the machines have their own.
    return tuple("numpy" if name == "numpy" else _pinned(name) for name in dict.fromkeys(names))


def _pinned(name: str) -> str:
    try:
        return f"{name}=={version(name).partition('+')[0]}"
    except PackageNotFoundError:
        return name


def setup_lines(job: EngineJob, *, torch: bool) -> tuple[str, ...]:
    """Shell lines that prepare a machine: ours, then the job's."""
    package_words = " ".join(f"'{package}'" for package in packages(job, torch=torch))
    return (f"{job.python} -m pip install --quiet {package_words}", *job.setup)


def literal(text: str) -> str:
    """As Kubernetes and dstack leave it: they replace ``$(NAME)`` and ``${{ name }}``.

    >>> literal("a $(b) $$5")
    'a $$(b) $$$$5'
    """
    return text.replace("$", "$$")


def limited(job: EngineJob, command: str) -> str:
    """`command` under the job's time limit, where the engine has none of its own.

    A limit that is over is no failure: the engine would start it again.
    """
    if job.max_hours is None:
        return command
    seconds = max(1, round(3600 * job.max_hours))  # timeout takes 0 for no limit
    # 137: a rank did not listen, so it was killed; before that time it is another's doing.
    late = f"[ $code = 137 ] && [ $((SECONDS - began)) -ge {seconds} ]"
    over = f"if [ $code = 124 ] || {{ {late}; }}; then echo 'the time limit is over'; exit 0; fi"
    timed = f"timeout --kill-after={_GRACE_SECONDS} {seconds} {command}"
    return f"began=$SECONDS; {timed} || {{ code=$?; {over}; exit $code; }}"

"""A job as plain commands: one shell text per machine, which needs Accelerate or torch alone."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from workbench import recipes
from workbench.describe.supported import backend
from workbench.engines.job import EngineJob
from workbench.engines.spending import counted
from workbench.errors import UsageError
from workbench.launching.prepare import accelerate_config
from workbench.launching.prepare.cpu_threads import cpu_threads
from workbench.launching.prepare.layout_flags import layout_flags
from workbench.launching.prepare.placement import NAMES, Placement, check_address, escaped_for_torch

CONFIG_FOLDER = "workbench-config"
"""Folder of the launcher's files, in the working directory."""
_RANK, _ADDRESS, _PORT = "@NODE-RANK@", "@ADDRESS@", "@PORT@"
_LAUNCHERS = ("accelerate", "torchrun")


def plain_commands(
    job: EngineJob, address: str, port: int | None = None, *, launcher: str = "accelerate"
) -> list[str]:
    """What to paste into a shell of each machine, node 0 first.

    Args:
        job: What to start.
        address: Where the other machines reach node 0.
        port: Rendezvous port on node 0; None = the job's.
        launcher: accelerate, or torchrun where the strategy needs nothing of Accelerate's.

    Raises:
        UsageError: the strategy cannot be started so, or the address is none.
    """
    address = check_address(address)
    chosen = job.port if port is None else port
    return [
        launch_script(job, address=address, port=chosen, node_rank=rank, launcher=launcher)
        for rank in range(job.nodes)
    ]


def launch_script(
    job: EngineJob,
    *,
    address: str,
    port: int | str,
    node_rank: int | str,
    launcher: str = "accelerate",
    resume: bool = False,
    exports: bool = True,
) -> str:
    """The shell text of one machine: config files, variables, the command.

    `address`, `port` and `node_rank` may be shell expressions, as ``"$SLURM_NODEID"`` with its
    quotes: they are put into the text as they are.

    Args:
        job: What to start.
        address: Of node 0.
        port: Of the rendezvous there.
        node_rank: Which machine the text is for.
        launcher: accelerate or torchrun.
        resume: Whether a recipe continues from the newest whole checkpoint that it finds.
        exports: Whether it sets the job's variables; False = the engine's own file does.

    Raises:
        UsageError: the strategy cannot be started so.
    """
    if launcher not in _LAUNCHERS:
        raise UsageError(f"launcher must be accelerate or torchrun, not {launcher!r}.")
    lines = [f"cd {shlex.quote(str(job.working_directory))}"] if job.working_directory else []
    lines += job.setup
    lines += _files(job) if launcher == "accelerate" else []
    lines += _variables(job, address, job.environment if exports else {})
    words = _words(job, resume=resume)
    argv = _accelerate(job, words) if launcher == "accelerate" else _torchrun(job, words)
    places = {_RANK: str(node_rank), _ADDRESS: str(address), _PORT: str(port)}
    own = len(argv) - len(words)  # what the script is given is never one of these marks
    quoted = [places.get(word) or shlex.quote(word) for word in argv[:own]]
    text = " ".join([*quoted, *map(shlex.quote, argv[own:])])
    return "\n".join([*lines, counted(job, text, node_rank)]) + "\n"


def script_of(job: EngineJob) -> str:
    """The script's path: a recipe's name stands for its file, here or where it was copied to."""
    all_recipes = recipes.recipes()
    if job.script not in all_recipes:
        return job.script
    path = all_recipes[job.script].path
    return f"{job.recipe_folder}/{path.name}" if job.recipe_folder else str(path)


def _splits(job: EngineJob) -> frozenset[str] | None:
    all_recipes = recipes.recipes()
    return all_recipes[job.script].splits if job.script in all_recipes else None


def _device(job: EngineJob) -> str:
    return "cpu" if job.gpu is None else "cuda"


def _words(job: EngineJob, *, resume: bool) -> list[str]:
    """The script and its arguments, with what the strategy says to a recipe."""
    splits = _splits(job)
    layout = layout_flags(job.strategy) if splits else []
    words = [script_of(job), *layout, *job.arguments]
    if splits is None:
        return words
    if job.checkpoint_every is not None:
        words += ["--checkpoint-every", str(job.checkpoint_every)]
    return [*words, "--resume", "latest"] if resume else words


def _files(job: EngineJob) -> list[str]:
    files = accelerate_config.files(
        job.strategy,
        _device(job),
        _wrap(job),
        folder=Path(CONFIG_FOLDER),
        splits=_splits(job),
        nodes=job.nodes,
    )
    lines = [f"mkdir -p {CONFIG_FOLDER}"]
    for name, text in files.items():
        path = f"{CONFIG_FOLDER}/{name}"
        # Machines may share the folder: none reads what another one is just writing.
        whose = f'"{path}.$HOSTNAME.$$"' if job.nodes > 1 else path
        lines += [f"cat > {whose} <<'END'", text.rstrip("\n"), "END"]
        lines += [f"mv {whose} {path}"] if job.nodes > 1 else []
    return lines


def _wrap(job: EngineJob) -> str | None:
    all_recipes = recipes.recipes()
    return all_recipes[job.script].block if job.script in all_recipes else None


def _variables(job: EngineJob, address: str, own: Mapping[str, str]) -> list[str]:
    values = accelerate_config.environment(_device(job), None) | {"PYTHONUNBUFFERED": "1"}
    values |= own
    lines = [f"export {name}={shlex.quote(value)}" for name, value in values.items()]
    names = NAMES[:1] if job.gpu is None else NAMES
    for name in names if job.nodes > 1 else ():
        lines += _interface(name, address)
    return lines


def _interface(name: str, address: str) -> list[str]:
    """The interface that leads to node 0, unless the environment names one.

    On node 0 itself the route leads to ``lo``, so it looks for the interface with that address.
    """
    where = f"$(ip -o addr show to {address} 2>/dev/null | awk '{{print $2; exit}}')"
    towards = f"$(ip -o route get {address} 2>/dev/null | sed -n 's/.* dev \\([^ ]*\\).*/\\1/p')"
    return [
        f'export {name}="${{{name}:-{where}}}"',
        f'export {name}="${{{name}:-{towards}}}"',
    ]


def _accelerate(job: EngineJob, words: list[str]) -> list[str]:
    threads = cpu_threads(  # the machine's cores are not known here
        job.environment,
        cores=None,
        ranks=job.processes_per_node,
        device=_device(job),
        offload=False,
    )
    argv = accelerate_config.command(
        Path(CONFIG_FOLDER),
        Path(words[0]),
        words[1:],
        strategy=job.strategy,
        device=_device(job),
        threads=threads.value,
        port=0,
        splits=_splits(job),
        environment=job.environment,
    )
    argv = [job.python, *argv[1:]]
    if job.nodes == 1:
        return argv
    return Placement(nodes=job.nodes, node_rank=_RANK, address=_ADDRESS, port=_PORT).of(argv)


def _torchrun(job: EngineJob, words: list[str]) -> list[str]:
    backend_name = backend(job.strategy, _splits(job))
    if backend_name not in {"single", "ddp", "script"}:
        raise UsageError(
            f"{job.strategy.name} is configured in Accelerate's config file ({backend_name}), "
            "which torchrun does not read. Use the accelerate commands, or --strategy ddp."
        )
    return [
        *(job.python, "-m", "torch.distributed.run"),
        *("--nnodes", str(job.nodes), "--node-rank", _RANK),
        *("--nproc-per-node", str(job.processes_per_node)),
        *("--master-addr", _ADDRESS, "--master-port", _PORT),
        *map(escaped_for_torch, words),
    ]

"""Scripts that start their ranks themselves: recognised in their source, before anything starts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from workbench.store.python_source import readable_tree

LAUNCHERS_OWN = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE"})
"""Variables by which a script sees that a launcher has started it."""
_TORCH = "torch.multiprocessing"
_LIGHTNING = "Lightning"


@dataclass(frozen=True, slots=True)
class RankStarter:
    """What a script starts its ranks with."""

    name: str
    """For people: ``torch.multiprocessing``, ``Lightning``, ``torchrun``."""
    follows_launcher: bool = False
    """Whether it takes the ranks of a launcher, where it is started by one, and starts none."""


# What is called, by the module that it is imported from.
_CALLS: dict[str, str] = {
    **{f"{_TORCH}.{name}": _TORCH for name in ("spawn", "start_processes")},
    **{
        f"{module}.{name}": f"accelerate's {name}"
        for module in ("accelerate", "accelerate.launchers")
        for name in ("notebook_launcher", "debug_launcher")
    },
    **{
        f"torch.distributed.{module}.{name}": "torch's elastic launcher"
        for module in ("launcher", "launcher.api")
        for name in ("elastic_launch", "launch_agent")
    },
    "torch.distributed.run.main": "torchrun",
    "torch.distributed.run.run": "torchrun",
    "ray.train.torch.TorchTrainer": "Ray Train",
    "ray.train.lightning.LightningTrainer": "Ray Train",
    **{
        f"{package}.{name}": _LIGHTNING
        for package in ("lightning", "lightning.pytorch", "pytorch_lightning", "lightning.fabric")
        for name in ("Trainer", "Fabric", "fabric.Fabric", "pytorch.Trainer")
    },
}
_SHELL = {
    *(f"subprocess.{name}" for name in ("run", "call", "check_call", "check_output", "Popen")),
    "os.system",
    *(f"os.exec{name}" for name in ("v", "ve", "vp", "vpe", "l", "le", "lp", "lpe")),
}
_COMMAND = re.compile(
    r"(?:\S*/)?(torchrun|accelerate\s+launch|deepspeed|python\S*\s+-m\s+torch\.distributed\.\w+)"
    r"(\s|$)"
)
_COMMAND_WORDS = {"torchrun", "deepspeed", "torch.distributed.run", "torch.distributed.launch"}


def rank_starter(path: Path) -> RankStarter | None:
    """What the script starts its ranks with; None = it leaves that to a launcher, or is unreadable.

    One that reads the launcher's variables does without when it has been started by one, as
    Lightning does. `multiprocessing.Process` alone has other uses too.
    """
    tree = readable_tree(path)
    if tree is None:
        return None
    nodes = list(ast.walk(tree))
    written = {
        id(node.slice)
        for node in nodes
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
    }
    reads = any(
        isinstance(node, ast.Constant) and node.value in LAUNCHERS_OWN and id(node) not in written
        for node in nodes
    )
    imports = _imported(nodes)
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    called = [(_full_name(node.func, imports), node) for node in calls]
    name = next((_CALLS[name] for name, _ in called if name in _CALLS), None)
    if name is None and any(name == f"{_TORCH}.Process" for name, _ in called):
        forms = any(ast.unparse(call.func).endswith("init_process_group") for call in calls)
        name = _TORCH if forms else None
    name = name or next(_commands(called, nodes), None)
    return None if name is None else RankStarter(name, reads or name == _LIGHTNING)


def _imported(nodes: list[ast.AST]) -> dict[str, str]:
    """Names of the script -> what they stand for: ``mp`` -> ``torch.multiprocessing``."""
    imports: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for name in node.names:
                first = name.name.partition(".")[0]
                imports[name.asname or first] = name.name if name.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imports |= {
                name.asname or name.name: f"{node.module}.{name.name}" for name in node.names
            }
    return imports


def _full_name(called: ast.expr, imports: dict[str, str]) -> str:
    """What is called, by the name it was imported from: ``torch.multiprocessing.spawn``."""
    first, dot, rest = ast.unparse(called).partition(".")
    return f"{imports.get(first, first)}{dot}{rest}"


def _commands(called: list[tuple[str, ast.Call]], nodes: list[ast.AST]) -> Iterator[str]:
    """Launchers that the script starts as commands: ``torchrun``."""
    values: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                values.setdefault(ast.unparse(target), []).append(node.value)
    for name, call in called:
        if name not in _SHELL:
            continue
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        words = {
            node.id for part in arguments for node in ast.walk(part) if isinstance(node, ast.Name)
        }
        parts = [*arguments, *(value for word in words for value in values.get(word, ()))]
        yield from filter(None, (_launcher_in(part) for part in parts))


def _launcher_in(part: ast.expr) -> str | None:
    texts = [
        node.value
        for node in ast.walk(part)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    for at, text in enumerate(texts):
        match = _COMMAND.match(text.strip())
        if match is not None:
            words = match[1].split()
            return "torchrun" if words[0].startswith("python") else " ".join(words)
        if text in _COMMAND_WORDS:
            return "torchrun" if text.startswith("torch") else text
        if text == "accelerate" and "launch" in texts[at + 1 : at + 2]:
            return "accelerate launch"
    return None

"""How a script is told to resume: a flag of its own, or the environment; refused where unknown."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from workbench.errors import UsageError
from workbench.recover.checkpoints import Checkpoint
from workbench.script_options.arguments import changed_arguments
from workbench.script_options.from_source import script_options
from workbench.script_options.values import ScriptOptions
from workbench.store.python_source import imports, script_tree

RESUME_VARIABLE = "WORKBENCH_RESUME"  # read by the capture hook for transformers' Trainer
PLACEHOLDER = "{checkpoint}"  # in arguments that the user gives
# Flags that take a folder to resume from, the surest first; what else a flag may mean (--load,
# --ckpt) it means less often.
_FLAGS = (
    *("--resume_from_checkpoint", "--resume-from-checkpoint", "--resume_from", "--resume-from"),
    *("--resume", "--load_checkpoint", "--load-checkpoint", "--load", "--ckpt_path", "--ckpt"),
)
_TRAINERS = {"Trainer", "TrainingArguments", "HfArgumentParser"}
_OF_TRAINERS = ("transformers", "trl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """What a resumed attempt is started with."""

    arguments: tuple[str, ...]
    """All arguments of the script; an earlier resume flag is replaced."""
    environment: dict[str, str] = field(default_factory=dict[str, str])
    """Set for every rank."""


def checkpoint_in_arguments(script: Path, arguments: Sequence[str]) -> str | None:
    """The value of the script's option to resume in `arguments`; None = they do not have it."""
    options = script_options(script)
    names = options.spellings(_resume_flag(options) or _FLAGS[0])
    for word, after in zip(arguments, [*arguments, ""][1:], strict=True):
        name, separator, value = word.partition("=")
        if name in names:
            return value if separator else after
    return None


def how_to_resume(
    script: Path,
    recipe: str | None,
    arguments: Sequence[str],
    checkpoint: Checkpoint,
    *,
    in_arguments: bool = False,
) -> Resumption:
    """The arguments and environment that make `script` continue from `checkpoint`.

    `in_arguments`: the arguments name a checkpoint themselves, so they stay as they are.

    Raises:
        UsageError: the script has no way that is known for certain; the message has the command
            for those who know one.
    """
    place = str(checkpoint.path)
    if any(PLACEHOLDER in word for word in arguments):
        return Resumption(arguments=tuple(word.replace(PLACEHOLDER, place) for word in arguments))
    try:
        tree = script_tree(script)
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        raise UsageError(f"{script} cannot be read to learn how it resumes: {error}") from error
    if _is_recipe(tree) or (recipe is not None and not uses_trainer(tree)):
        if not _is_recipe(tree):
            raise UsageError(
                f"The recipe {recipe or script.stem} is short and saves nothing: start it again, "
                "or take gpt, lora or vision, which resume."
            )
        words = changed_arguments(arguments, ["--resume", place], declared=script_options(script))
        return Resumption(arguments=tuple(words))
    if in_arguments:
        return Resumption(arguments=tuple(arguments))
    if checkpoint.kind == "trainer" or uses_trainer(tree):
        return Resumption(arguments=tuple(arguments), environment={RESUME_VARIABLE: place})
    options = script_options(script)
    flag = _resume_flag(options)
    if flag is None:
        raise UsageError(
            f"{script.name} has no option that is known to resume from a checkpoint. If it has "
            f"one: workbench resume RUN -- --your-flag '{PLACEHOLDER}', where {PLACEHOLDER} "
            f"becomes {place}. If not, give it one that loads what it saves; from the beginning: "
            "workbench resume RUN --checkpoint none"
        )
    return Resumption(
        arguments=tuple(changed_arguments(arguments, [flag, place], declared=options))
    )


def _is_written(about: str) -> bool:
    """Whether an option's help says that its file is written, and not that it is read.

    >>> _is_written("file that the checkpoint is saved to"), _is_written("saved file to load")
    (True, False)
    """
    text = about.lower()
    return bool(re.search(r"\b(sav|writ|stor|output)", text)) and not re.search(
        r"\b(resum|load|continu|restor|restart|start|read|init)", text
    )


def _resume_flag(options: ScriptOptions) -> str | None:
    texts = {
        name
        for option in options.options
        if option.takes_text and not _is_written(option.help)
        for name in option.names
    }
    return next((flag for flag in _FLAGS if flag in texts), None)


def _is_recipe(tree: ast.Module) -> bool:
    """One of ours that resumes, or a copy: they share one way to find their checkpoint."""
    return ("recipe_options.with_checkpoint", 0) in imports(tree)


def uses_trainer(tree: ast.Module) -> bool:
    """Whether the script imports transformers' Trainer, or TRL's which derive from it."""
    for name, dots in imports(tree):
        package, _, imported = name.partition(".")
        kind = imported.rpartition(".")[2]
        if not dots and package in _OF_TRAINERS and (kind in _TRAINERS or kind.endswith("Trainer")):
            return True
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in _OF_TRAINERS
            and node.attr.endswith(("Trainer", "TrainingArguments"))
        ):
            return True
    return False

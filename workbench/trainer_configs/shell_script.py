"""The arguments of the training in a shell script, as far as they can be read without running it.

Simple variables are filled in. Options that a variable or an array holds are read where they are
assigned. Of several commands one is read: the others' options are of other programs. A
configuration file that the training is given is named.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from workbench.errors import UsageError

END = "--"
"""Stands at the end of a script's line: what follows is no value of its last option."""
_ENDS = {END, "&&", "||", ";", "|", "&"}
_LAUNCHERS = {
    *("torchrun", "accelerate", "deepspeed", "srun", "mpirun"),
    *("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"),
}
_PROGRAMS = {
    "axolotl": ("axolotl", {"train"}),
    "llamafactory-cli": ("llama-factory", {"train"}),
    "lmf": ("llama-factory", {"train"}),
    "trl": ("trl", {"sft", "dpo", "kto", "grpo", "rloo", "reward"}),
    "tune": ("torchtune", {"run"}),
}
"""Programs of trainers -> the trainer, and the actions that train."""
_MODULES = {"axolotl.": "axolotl", "llamafactory": "llama-factory", "trl.scripts.": "trl"}
_CONFIG_OPTIONS = {"--config", "--job.config_file", "--job.config-file"}
_CONFIG_ENDINGS = (".yaml", ".yml", ".toml")
_SETTING = re.compile(r"[A-Za-z_][\w.]*=.")
_LAYS_OUT = {
    *("use_fsdp", "use_deepspeed", "use_parallelism_config", "mixed_precision", "zero_stage"),
    *("offload_optimizer_device", "offload_param_device", "deepspeed_config_file"),
    *("zero3_init_flag", "zero3_save_16bit_model", "multi_gpu"),
}
_LAYS_OUT_PREFIX = re.compile(r"fsdp_(?!config\b)|parallelism_config_")
"""Options of ``accelerate launch`` (huggingface/accelerate commands/launch.py 1.15)."""
_BEFORE_VARIABLES = {"export", "env", "local", "declare", "readonly", "then", "do", "else"}
VISIBLE = "CUDA_VISIBLE_DEVICES"
_ASSIGNED = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(?:\$\{\w+:?[-=]([^}$]*)\}|([^\s;$`(]+))\Z")
_OPTIONS = re.compile(r"([A-Za-z_]\w*)\+?=((?:.*\s)?--\w.*)\Z", re.DOTALL)
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)(?::-([^}]*))?\}?")
_ALL_OF_ARRAY = re.compile(r"\$\{\w+\[[@*]\]\}\Z|\$@\Z")
_ARRAY = re.compile(r"\A(?:[A-Za-z_]\w*\+?=)?\(")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What is read of a shell script."""

    words: tuple[str, ...]
    """All words but those of its other commands and of `launcher`; `END` ends each line."""
    launcher: tuple[str, ...]
    """Options of Accelerate's launcher that say how the work is spread."""
    left_out: tuple[str, ...]
    """Scripts of its other commands."""
    script: str
    """The Python script or module, or the trainer's program with its action; "" = none is seen."""
    trainer: str | None
    """Whose program that is, where its name says it."""
    config: str
    """The configuration file that the trainer is given; "" = none."""
    settings: tuple[str, ...]
    """``key=value`` of the command, which count before that file."""


def read_training(path: Path, text: str) -> Training:
    """The training that a script starts.

    Raises:
        UsageError: a quotation mark is open.
    """
    commands = [*_commands(_words(path, text))]
    own = [command for command in commands if _script_of(command)]
    chosen = max(own, key=_weight, default=list[str]())
    left_out = [command for command in own if command is not chosen and _weight(command)[1]]
    remaining = [command for command in commands if not any(command is each for each in left_out)]
    words, launcher = list[str](), list[str]()
    accelerates = any(_starts_with_accelerate(command) for command in commands)
    for command in remaining:
        # In a line of their own stand the words of an array, of whichever of the two.
        end = _script_at(command) if command is chosen else len(command)
        of_launcher, others = _split(command[:end]) if accelerates else ([], command[:end])
        launcher += of_launcher
        words += [*others, *command[end:], END]
    script = _script_of(chosen)
    config, settings = _config_of(chosen)
    return Training(
        words=tuple(words),
        launcher=tuple(launcher),
        left_out=tuple(dict.fromkeys(_script_of(command) for command in left_out)),
        script=script,
        trainer=_trainer_of(script),
        config=config,
        settings=settings,
    )


def _words(path: Path, text: str) -> list[str]:
    """All words, comments and line ends left out, simple variables filled in."""
    try:
        lines = text.replace("\\\n", " ").replace("\n", f"\n{END}\n")
        words = shlex.split(lines, comments=True)
    except ValueError as error:
        raise UsageError(f"{path} cannot be read as a command line: {error}.") from error
    assigned = [match for word in words if (match := _ASSIGNED.match(word))]
    variables = {match[1]: match[3] if match[2] is None else match[2] for match in assigned}
    read_above = {match[1] for word in words if (match := _OPTIONS.match(word))}
    parts: list[str] = []
    begins = True  # there a word with "=" is a variable, elsewhere a setting of the program
    for word in words:
        name = _VARIABLE.fullmatch(word)
        if not _ALL_OF_ARRAY.match(word) and (name is None or name[1] not in read_above):
            filled = _VARIABLE.sub(
                lambda match: variables.get(match[1], match[2] or match[0]), word
            )
            is_setting = not begins and _SETTING.match(filled) and not _OPTIONS.match(filled)
            parts += [filled] if is_setting and "(" not in filled else _parts(filled)
        is_variable = begins and "=" in word
        begins = is_variable or word in _ENDS | _BEFORE_VARIABLES or word.endswith(";")
    return parts


def _parts(word: str) -> list[str]:
    """A word without what a shell's arrays put around it; an option that was quoted with its value.

    >>> _parts("(--bf16"), _parts("ARGS+=("), _parts("--fp8-format hybrid"), _parts(")")
    (['--bf16'], [], ['--fp8-format', 'hybrid'], [])
    >>> _parts("ARGS= --bf16 --seq-length 4096")
    ['--bf16', '--seq-length', '4096']
    """
    if held := _OPTIONS.match(word):
        return held[2].split()
    if word.startswith(f"{VISIBLE}=") and "$" not in word:
        return [f"--{word}"]
    plain = _ARRAY.sub("", word).rstrip(")") if "(" in word or word.endswith(")") else word
    if plain.startswith("--"):
        return plain.split() or [END]
    return [plain] if plain.strip() and not _ASSIGNED.match(plain) else []


def _commands(words: Sequence[str]) -> Iterator[list[str]]:
    """The words between ends of lines and commands."""
    command: list[str] = []
    for word in words:
        if word not in _ENDS and not word.endswith(";"):
            command.append(word)
            continue
        yield [*command, word.rstrip(";")] if word not in _ENDS else command
        command = []
    yield command


def _script_of(command: Sequence[str]) -> str:
    """The Python script or module that a command runs, or a trainer's own program; "" = none."""
    at = _script_at(command)
    if at == len(command):
        return ""
    if _program(command[at]) in _PROGRAMS:
        return f"{_program(command[at])} {command[at + 1] if at + 1 < len(command) else ''}".strip()
    return command[at]


def _script_at(command: Sequence[str]) -> int:
    """Where in a command its script, module or trainer's program stands; its length = nowhere."""
    for at, word in enumerate(command):
        if word.endswith(".py") and not word.startswith("-"):
            return at
        before = command[at - 1] if at else ""
        if before in {"-m", "--module"} and word not in _LAUNCHERS:
            return at
        following = command[at + 1] if at + 1 < len(command) else ""
        is_first = all(each.startswith("-") for each in command[:at])
        trains = _trainer_of(f"{_program(word)} {following}") is not None
        if _program(word) in _PROGRAMS and (is_first or trains):
            return at
    return len(command)


def _program(word: str) -> str:
    return word.rpartition("/")[2]


def _trainer_of(script: str) -> str | None:
    program, _, action = script.partition(" ")
    if program in _PROGRAMS:
        trainer, actions = _PROGRAMS[program]
        return trainer if action in actions else None
    return next((_MODULES[name] for name in _MODULES if script.startswith(name)), None)


def _config_of(command: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The configuration file that a command's script is given, and the ``key=value`` behind it."""
    arguments = command[_script_at(command) + 1 :]
    config = ""
    for before, word in pairwise(["", *arguments]):
        option, equals, value = word.partition("=")
        is_file = word.endswith(_CONFIG_ENDINGS) and not equals
        if option in _CONFIG_OPTIONS and equals:
            config = config or value
        elif before in _CONFIG_OPTIONS or (is_file and not before.startswith("-")):
            config = config or word
    if not config and _trainer_of(_script_of(command)) in {"axolotl", "llama-factory"}:
        action = _program(command[_script_at(command)]) in _PROGRAMS
        first = next(iter(arguments[1 if action else 0 :]), "")
        config = first if first.startswith("$") else ""  # a variable that nothing here says
    return config, settings_of(arguments)


def settings_of(arguments: Sequence[str]) -> tuple[str, ...]:
    """The words ``key=value`` of a command."""
    return tuple(word for word in arguments if _SETTING.match(word))


def _starts_with_accelerate(command: Sequence[str]) -> bool:
    """Whether a command starts its script with ``accelerate launch``."""
    before = [_program(word) for word in command[: _script_at(command)]]
    return "accelerate" in before or "accelerate.commands.launch" in before


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Options of Accelerate's launcher that lay out the work, with their values; other words."""
    of_launcher, others = list[str](), list[str]()
    chosen = others
    for word in words:
        if word.startswith("--"):
            name = word[2:].partition("=")[0].replace("-", "_")
            chosen = of_launcher if name in _LAYS_OUT or _LAYS_OUT_PREFIX.match(name) else others
        elif word.startswith("-"):  # -m, which ends the values of an option
            chosen = others
        chosen.append(word)
    return of_launcher, others


def _weight(command: Sequence[str]) -> tuple[bool, int]:
    """How much a command looks like the training: by a launcher, then by its options."""
    launched = any(_program(word) in _LAUNCHERS for word in command)
    launched |= _program(_script_of(command).partition(" ")[0]) in _PROGRAMS and (
        _trainer_of(_script_of(command)) is not None
    )
    return launched, sum(word.startswith("--") for word in command)

"""A trial's values as options of the script: checked before anything starts, then written."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from workbench.describe.checks import switch_of
from workbench.describe.other_names import unknown_option
from workbench.errors import UsageError
from workbench.launching.prepare.targets import Target
from workbench.recover.resuming import uses_trainer
from workbench.script_options.checks import problem_of
from workbench.script_options.reading import read_options
from workbench.script_options.typed_text import with_value
from workbench.script_options.values import Reading, ScriptOption
from workbench.store.processes import DIRECTORY
from workbench.store.python_source import readable_tree
from workbench.sweeping.parameters import Parameter

_SAVING = {"save", "save_state", "save_pretrained", "save_checkpoint", "save_model"}


def read_script(target: Target) -> Reading:
    """What the script can be told; nothing of it is run."""
    return read_options(target.path, recipe=target.recipe, module=target.module)


def overwriting_note(target: Target) -> str:
    """That trials, which share a folder, may overwrite each other's checkpoints.

    "" = they do not: nothing is saved, or each saves in its run's folder as the recipes do.
    """
    tree = readable_tree(target.path) if target.recipe is None else None
    if tree is None:
        return ""
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    if DIRECTORY in texts or not (names & _SAVING or uses_trainer(tree)):
        return ""
    return (
        f"{target.path.name} saves by itself. Where it saves to the same place in every trial, "
        "each overwrites what the one before has saved, the best one's too: let it save below "
        f"os.environ[{DIRECTORY!r}], each trial's own folder."
    )


def checked(parameter: Parameter, reading: Reading, script: str) -> Parameter:
    """The parameter as the script's own option, whose type it takes.

    Raises:
        UnknownNameError: the script has no such option.
        UsageError: the option does not take one of the values.
    """
    option = _option(parameter.name, reading)
    if option is None:
        if reading.complete:
            option_names = [option.name.lstrip("-") for option in reading.known.options]
            raise unknown_option(f"option of {script}", parameter.name, option_names)
        return parameter
    is_integer = option.kind == "integer" and not parameter.values
    if is_integer and not (parameter.low.is_integer() and parameter.high.is_integer()):
        raise UsageError(
            f"{option.name} of {script} takes whole numbers: give whole ends, not {parameter}."
        )
    named = replace(parameter, option=option.name, integer=parameter.integer or is_integer)
    for text in _samples(named):
        problem = problem_of(option, text)
        if option.is_switch and switch_of(text) is None:
            problem = f"{option.name} is a switch: give true,false, not {text!r}."
        if not option.is_switch and not option.is_word and option.most == 0:
            problem = f"{option.name} takes no value."
        if not text and not (option.takes_text or text in option.choices):
            problem = f"{option.name} needs a value."
        if problem:
            raise UsageError(f"{script}: {problem}")
    if len({_meant(option, text) for text in parameter.values}) < len(parameter.values):
        raise UsageError(f"{named}: {option.name} takes two of these for the same. Give it once.")
    return named


def _meant(option: ScriptOption, text: str) -> str | float | bool | None:
    """What the script makes of a value: of a number as text, 3.10 is another than 3.1."""
    if option.is_switch:
        return switch_of(text)
    if option.most != 1 or option.kind not in {"integer", "number"}:
        return text
    return int(text) if option.kind == "integer" else float(text)


def _option(name: str, reading: Reading) -> ScriptOption | None:
    """By its exact name, underscores and hyphens alike."""
    plain = name.lstrip("-")
    spellings = {plain, plain.replace("_", "-"), plain.replace("-", "_")}
    matching = (reading.known.by_name.get(f"--{spelling}") for spelling in spellings)
    short = reading.known.by_name.get(f"-{plain}") if len(plain) == 1 else None
    return next((option for option in matching if option is not None), short)


def _samples(parameter: Parameter) -> Sequence[str]:
    if parameter.values:
        return parameter.values
    return [parameter.text_of(parameter.low), parameter.text_of(parameter.high)]


def with_values(
    arguments: Sequence[str],
    values: Mapping[str, str],
    parameters: Sequence[Parameter],
    reading: Reading,
) -> list[str]:
    """The script's arguments with a trial's values. Raises UsageError: one cannot be put there."""
    text, script_options = shlex.join(arguments), reading.known
    options = {
        parameter.name: script_options.by_name.get(parameter.option) for parameter in parameters
    }
    written = {parameter.name: parameter.option for parameter in parameters}
    unknown: list[str] = []
    for name, value in values.items():
        option = options[name]
        if option is None:
            unknown += [f"{written[name]}={value}"] if value[:1] == "-" else [written[name], value]
        elif option.is_switch:
            text = with_value(text, script_options, option.name, switch_of(value) is True)
        elif not value:  # else the default would be trained under its name
            text = with_value(text, script_options, option.name, None)
            unknown.append(f"{option.name}=")
        else:
            text = with_value(text, script_options, option.name, value)
    return [*shlex.split(text), *unknown]

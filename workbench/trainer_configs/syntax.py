"""How configurations look in a file: YAML, JSON, TOML, or the arguments of a command line."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from workbench.trainer_configs.document import put_below
from workbench.trainer_configs.shell_script import END, VISIBLE
from workbench.trainer_configs.yaml_text import yaml_text

_LAUNCHER = {
    **dict.fromkeys(("nproc_per_node", "num_gpus", "gpus_per_node"), "gpus"),
    **dict.fromkeys(("nnodes", "num_nodes", "num_machines"), "nodes"),
    "num_processes": "world_size",
    **dict.fromkeys(("config_file", "accelerate_config"), "config_file"),
    VISIBLE: "visible",
}
"""Options of torchrun, accelerate launch, deepspeed and Slurm that say how many GPUs there are, or
in which file of Accelerate that stands."""
_TO_ESCAPE = re.compile("[\x00-\x1f\x7f]")


def read_arguments(words: Sequence[str]) -> dict[str, Any]:
    """Options of a command line by name; those of a launcher give ``gpus`` and ``nodes``.

    >>> read_arguments(["--nproc_per_node=8", "train.py", "--bf16", "--lr", "1e-4"])
    {'bf16': True, 'lr': '1e-4', 'launcher': {'gpus': '8'}}
    """
    values: dict[str, Any] = {}
    launcher: dict[str, Any] = {}
    for name, option_values in _options(words):
        value: Any = (
            True
            if not option_values
            else option_values[0]
            if len(option_values) == 1
            else option_values
        )
        if "$" in str(value):  # a variable whose value the file does not say
            continue
        place = launcher if name in _LAUNCHER and name not in values else values
        if place is launcher and option_values:
            value = option_values[0]  # a recipe's name may follow, as that of torchtune's
        put_below(place, _LAUNCHER.get(name, name).split("."), value)
    return values | ({"launcher": launcher} if launcher else {})


def _options(words: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    name, option_values = "", list[str]()
    for word in words:
        is_option = word.startswith("--") and word != END
        is_script = word.endswith(".py") or word in {"-m", END}
        if not (is_option or is_script):
            option_values.append(word)
            continue
        if name:
            yield name, option_values
        name, equals, value = word[2:].partition("=") if is_option else ("", "", "")
        name, option_values = name.replace("-", "_"), [value] if equals else []
        if equals:  # what follows is no value of it
            yield name, option_values
            name = ""
    if name:
        yield name, option_values


def yaml_file(values: Mapping[str, Any], comments: Sequence[str]) -> str:
    """As YAML, below the comments."""
    return yaml_text(values, comments)


def json_file(values: Mapping[str, Any], comments: Sequence[str] = ()) -> str:
    """As JSON, which has no comments."""
    del comments
    return json.dumps(values, indent=2) + "\n"


def toml_file(values: Mapping[str, Any], comments: Sequence[str]) -> str:
    """As TOML: a table for each mapping, one level deep or more."""
    lines = [f"# {' '.join(line.split())}" for line in comments]
    return "\n".join([*lines, *_table("", values)]) + "\n"


def _table(name: str, values: Mapping[str, Any]) -> Iterator[str]:
    plain = {key: value for key, value in values.items() if not isinstance(value, Mapping)}
    if name and plain:
        yield ""
        yield f"[{name}]"
    for key, value in plain.items():
        yield f"{key} = {_toml_value(value)}"
    for key, value in values.items():
        if isinstance(value, Mapping):
            inner = cast("Mapping[str, Any]", value)
            yield from _table(f"{name}.{key}" if name else key, inner)


def _toml_value(value: Any) -> str:
    """A value as TOML writes it; of a text every control character is escaped.

    >>> _toml_value(True), _toml_value([1, "a"])
    ('true', '[1, "a"]')
    """
    if isinstance(value, str):
        text = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + _TO_ESCAPE.sub(_escaped, text) + '"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml_value, cast('list[Any]', value)))}]"
    return json.dumps(value)


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04X}"


def arguments(values: Mapping[str, Any], *, dashes: bool = False) -> list[str]:
    """As arguments: switches that are on alone, others with their value.

    >>> arguments({"bf16": True, "optim": "sgd", "names": ["q", "v"]})
    ['--bf16', '--optim', 'sgd', '--names', 'q', 'v']
    """
    words: list[str] = []
    for key, value in values.items():
        name = f"--{key.replace('_', '-') if dashes else key}"
        if value is True:
            words.append(name)
        elif isinstance(value, list | tuple):
            words += [name, *map(str, cast("list[Any]", value))]
        else:
            words += [name, str(value)]
    return words


def script_file(
    start: Sequence[str],
    words: Sequence[str],
    comments: Sequence[str],
    variables: Mapping[str, str],
) -> str:
    """A shell script: variables, what starts the training, and one option on each line."""
    lines: list[str] = [shlex.join(start)]
    for word in words:
        if word.startswith("--"):
            lines.append(f"  {shlex.quote(word)}")
        else:
            lines[-1] += f" {shlex.quote(word)}"
    head = ["#!/bin/sh", *(f"# {' '.join(line.split())}" for line in comments)]
    head += [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    return "\n".join(head) + "\n" + " \\\n".join(lines) + "\n"

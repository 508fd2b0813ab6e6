"""The values of a configuration file; of a shell script, those of the training that it starts."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from workbench.errors import HostError, UsageError, pip_install
from workbench.trainer_configs.config_fields import load, read_text
from workbench.trainer_configs.document import put_below
from workbench.trainer_configs.shell_script import Training, read_training
from workbench.trainer_configs.syntax import read_arguments

_FILE_ENDINGS = {".yaml", ".yml", ".json", ".toml"}
_NAMING = {"config", "job"}
"""Options that name the file: of TRL and torchtune, of torchtitan (``job.config_file``)."""
_STRATEGIES = {"use_fsdp": "FSDP", "use_deepspeed": "DEEPSPEED", "multi_gpu": "MULTI_GPU"}
"""Switches of ``accelerate launch`` -> ``distributed_type`` of its file."""


def read_file(path: Path) -> dict[str, Any]:
    """The values of a configuration file, nested; of a script, those of its command line.

    Raises:
        UsageError: the file cannot be read, is not what its ending says, or starts a trainer with
            a file that is not here.
        HostError: Python before 3.11 without tomli reads no TOML.
    """
    if path.suffix in _FILE_ENDINGS - {".toml"}:
        return load(path)
    text = read_text(path)
    if path.suffix == ".toml":
        return _toml(path, text)
    training = read_training(path, text)
    values = read_arguments(training.words)
    launcher = values.pop("launcher", {})
    if training.left_out:
        launcher["left_out"] = ", ".join(training.left_out)
    if layout := _accelerate_values(read_arguments(training.launcher)):
        launcher["accelerate"] = layout
    if training.trainer is not None:
        launcher["trainer"] = training.trainer
    if (file := _named_file(path, training)) is not None:
        launcher["config"] = str(file)
        values = over_file(read_file(file), training.settings, values)
    return values | ({"launcher": launcher} if launcher else {})


def started_script(path: Path) -> str:
    """What a shell script starts, as ``workbench launch`` takes it; "" = that cannot be read.

    Raises:
        UsageError: it is not a text, or a quotation mark is open.
    """
    script = read_training(path, read_text(path)).script
    if script.endswith(".py"):
        return script
    return f"-m {script}" if script and " " not in script and "$" not in script else ""


def beside(folder: Path, name: str) -> Path | None:
    """The file of that name in a folder or one above it; None = in none of them."""
    path = Path(name).expanduser()
    for outer in (folder.absolute(), *folder.absolute().parents):
        try:
            if (outer / path).is_file():
                return outer / path
        except (OSError, ValueError):  # a name that no file can have
            return None
    return None


def merged(values: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values with others over them, key by key.

    >>> merged({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
    {'a': {'b': 3, 'c': 2}}
    """
    both = dict(values)
    for key, value in over.items():
        below = both.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            inner = cast("Mapping[str, Any]", below)
            both[key] = merged(inner, cast("Mapping[str, Any]", value))
        else:
            both[key] = value
    return both


def _named_file(path: Path, training: Training) -> Path | None:
    """The configuration file that a script's training is given, where one is.

    Raises:
        UsageError: a trainer that needs it is given one that is not here.
    """
    if not training.config:
        return None
    file = beside(path.parent, training.config)
    is_file = file is not None and file.suffix in _FILE_ENDINGS
    if is_file or training.trainer is None:
        return file if is_file else None
    copied = f" (tune cp {training.config} FILE.yaml writes one of torchtune's)"
    raise UsageError(
        f"{path} starts {training.script} with {training.config}, which is not a file in "
        f"{path.parent.absolute()} or a folder above it"
        f"{copied if training.trainer == 'torchtune' else ''}. Give that file: --config FILE."
    )


def over_file(
    of_file: Mapping[str, Any], settings: Sequence[str], options: Mapping[str, Any]
) -> dict[str, Any]:
    """The file's values with those of the command line over them: ``key=value``, and options."""
    over: dict[str, Any] = {}
    for name, value in options.items():
        positive = name.removeprefix("no_")
        if name != positive and value is True and name not in of_file:
            over[positive] = False
        elif name not in _NAMING:
            over[name] = _typed(value)
    for setting in settings:
        key, _, text = setting.partition("=")
        if "$" not in text:
            put_below(over, key.split("."), _typed(text))
    return merged({key: value for key, value in of_file.items() if key != "launcher"}, over)


def _typed(value: Any) -> Any:
    """Words of a command line as the same text in YAML is read."""
    import yaml  # noqa: PLC0415 - comes with accelerate, and only this needs it

    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value).items()
        return {key: _typed(inner) for key, inner in items}
    if isinstance(value, list):
        return [_typed(inner) for inner in cast("list[Any]", value)]
    if not isinstance(value, str):
        return value
    try:
        return yaml.safe_load(value)
    except (yaml.YAMLError, ValueError, RecursionError):
        return value


def _accelerate_values(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of Accelerate's launcher as its file has them, with its parser's defaults.

    Source: huggingface/accelerate src/accelerate/commands/launch.py 1.15.
    """
    typed: dict[str, Any] = {name: _typed(value) for name, value in options.items()}
    values: dict[str, Any] = {}
    for switch, kind in _STRATEGIES.items():
        if typed.pop(switch, None):
            values["distributed_type"] = kind
    typed.pop("use_parallelism_config", None)
    for name, value in typed.items():
        if name == "mixed_precision":
            values[name] = "no" if value is False else value
        elif name.startswith("fsdp_"):
            put_below(values, ["fsdp_config", name], value)
        elif name.startswith("parallelism_config_"):
            put_below(values, ["parallelism_config", name], value)
        else:
            put_below(values, ["deepspeed_config", name], value)
    if values.get("distributed_type") == "FSDP":
        put_below(values, ["fsdp_config", "fsdp_version"], typed.get("fsdp_version", 1))
    elif values.get("distributed_type") == "DEEPSPEED" and "deepspeed_config_file" not in typed:
        put_below(values, ["deepspeed_config", "zero_stage"], typed.get("zero_stage", 2))
    return values


def _toml(path: Path, text: str) -> dict[str, Any]:
    for name in ("tomllib", "tomli"):  # the second is the first for Python 3.10
        try:
            reader = importlib.import_module(name)
        except ImportError:
            continue
        try:
            return reader.loads(text)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path} is not TOML: {error}. Give a config file.") from error
    raise HostError(f"Reading TOML needs Python 3.11, or the package tomli: {pip_install('tomli')}")

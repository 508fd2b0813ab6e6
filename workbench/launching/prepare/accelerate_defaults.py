"""What Accelerate is told for a script that leaves its number format or its compilation open.

``accelerate launch`` takes both from the file that ``accelerate config`` wrote. We give it a file
of our own, so they are read here. They travel as Accelerate's variables: a record keeps them, an
export carries them. Its launcher overwrites these variables by its flags, so each is a flag, too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from workbench.describe.checks import switch_of
from workbench.errors import UsageError
from workbench.trainer_configs.config_fields import load

PRECISION = "ACCELERATE_MIXED_PRECISION"
_PRECISIONS = ("no", "fp16", "bf16", "fp8")
_BACKEND = "ACCELERATE_DYNAMO_BACKEND"
_GROUPS = {PRECISION: "ACCELERATE_FP8_", _BACKEND: "ACCELERATE_DYNAMO_"}
"""What decides -> how the variables begin that go with it."""
_SWITCHES = frozenset(
    {
        *("dynamo_use_fullgraph", "dynamo_use_dynamic", "dynamo_use_regional_compilation"),
        "fp8_use_autocast_during_eval",
    }
)
_TRIPLES = "ACCELERATE_FP8_OVERRIDE_"
"""Three variables of one flag, whose default is off: not carried over."""


def open_settings(variables: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Accelerate's other variables that count here, and a sentence on where each is from.

    `variables` come first, then this process's environment, then the user's file of
    ``accelerate config``.

    Raises:
        UsageError: a variable asks for a number format that Accelerate does not have.
    """
    path = _config_path({**os.environ, **variables})
    chosen, sentences = dict[str, str](), list[str]()
    for name in _GROUPS:
        word = variables.get(name) or os.environ.get(name)
        if word and not _is_known(name, word):
            raise UsageError(
                f"{name} is {word!r}. Accelerate knows {', '.join(_PRECISIONS)}: set one of them."
            )
        if variables.get(name):
            continue
        settings, source = _group(name, os.environ), "this environment"
        if not settings and path.is_file():  # Accelerate would refuse another format: not here
            settings, source = _group(name, _configured(path)), f"accelerate config: {path}"
        value = settings.get(name, "no")
        if value.lower() != "no" and _is_known(name, value):
            chosen |= settings
            title = name.removeprefix("ACCELERATE_").lower()
            sentences.append(
                f"Accelerate is told {title} {value} ({source}). It counts where the script names "
                f"none. For another: --env {name}=no."
            )
    return chosen, sentences


def launcher_flags(environment: Mapping[str, str]) -> list[str]:
    """The flags of ``accelerate launch`` that these variables stand for; without any, both off."""
    backend, precision = (environment.get(name) or "no" for name in (_BACKEND, PRECISION))
    words = ["--dynamo_backend", backend.lower(), "--mixed_precision", precision.lower()]
    for decides, value in ((_BACKEND, backend), (PRECISION, precision)):
        used = value.lower() != "no" and (decides == _BACKEND or value.lower() == "fp8")
        words += _more_flags(decides, environment) if used else []
    return words


def _more_flags(decides: str, environment: Mapping[str, str]) -> list[str]:
    words = list[str]()
    for name, value in sorted(environment.items()):
        if not name.startswith(_GROUPS[decides]) or name.startswith((_BACKEND, _TRIPLES)):
            continue
        flag = name.removeprefix("ACCELERATE_").lower()
        if flag not in _SWITCHES:
            words += [f"--{flag}", value]
        elif switch_of(value) is True:
            words.append(f"--{flag}")
    return words


def _is_known(name: str, value: str) -> bool:
    """Whether Accelerate has that number format; backends are the installed torch's affair."""
    return name != PRECISION or value.lower() in _PRECISIONS


def _group(name: str, variables: Mapping[str, str]) -> dict[str, str]:
    """The variable with those that go with it; {} = it is not set."""
    if not variables.get(name):
        return {}
    more = {
        variable: value
        for variable, value in variables.items()
        if variable.startswith(_GROUPS[name])
    }
    return {name: variables[name], **more}


def _config_path(environment: Mapping[str, str]) -> Path:
    """Where ``accelerate config`` writes, as Accelerate looks for it."""
    cache = Path(environment.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    home = Path(environment.get("HF_HOME") or cache / "huggingface").expanduser()
    yaml, older = (home / "accelerate" / f"default_config.{kind}" for kind in ("yaml", "json"))
    return older if older.is_file() and not yaml.is_file() else yaml


def _configured(path: Path) -> dict[str, str]:
    """The file's settings as Accelerate's variables; {} where it cannot be read."""
    try:
        values = load(path)
    except UsageError:
        return {}
    settings = {"mixed_precision": values.get("mixed_precision")}
    settings["dynamo_backend"] = values.get("dynamo_backend")  # of a file of earlier releases
    for section in ("dynamo", "fp8"):
        inner = values.get(f"{section}_config")
        part = cast("dict[str, Any]", inner) if isinstance(inner, dict) else {}
        for key, value in part.items():
            settings[f"{section}_{key.removeprefix(f'{section}_')}"] = value
    return {
        f"ACCELERATE_{key.upper()}": "no" if value is False else str(value)
        for key, value in settings.items()
        if isinstance(value, str | int | float)
    }

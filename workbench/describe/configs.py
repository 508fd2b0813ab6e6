"""Hugging Face ``config.json`` -> `Model`: from a path, directory, dict or object. No torch."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from workbench.describe.catalog import is_published
from workbench.describe.config_encoders import is_like_bert, like_bert
from workbench.describe.config_families import EXPERTS, HEADS, HIDDEN, LAYERS, deepseek, llama
from workbench.describe.config_keys import Keys
from workbench.describe.config_older import FAMILIES
from workbench.describe.config_windows import attention_kinds
from workbench.describe.model import Model
from workbench.errors import UsageError

# The language part of multimodal models, by the names in use.
NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
_OF_THE_WHOLE = ("_name_or_path", "model_type", "tie_word_embeddings")
"""Keys of a multimodal config that count for its language part where that does not have them:
transformers 5 saves whether the head is tied outside (configuration_qwen2_5_vl.py)."""
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_CLASSIFIER = "ForSequenceClassification"  # transformers' ending; two labels unless id2label says
_OTHER_BLOCKS = re.compile(
    r"mamba|ssm_|lru_width|^conv_L_cache$|zero_expert|^moe_num_experts$|per_layer_input$"
)
"""Keys of an unknown type that say it is not built like Llama: state spaces, experts unknown here,
embeddings in each block. Linear attention has about the size of attention and is read as such."""
MOST_BYTES = 50_000_000  # a config is a few kilobytes; a file of weights is not one


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadConfig:
    """A model as read from a config."""

    model: Model
    """The shape."""
    notes: tuple[str, ...]
    """What was read by analogy, taken from defaults or left out: sentences."""


def cached_config(repository: str) -> Path | None:
    """The config.json of a repository that Hugging Face's cache on this host holds; None = not."""
    if not _REPOSITORY.fullmatch(repository):
        return None
    home = os.environ.get("HF_HOME") or Path("~/.cache/huggingface").expanduser()
    cache = Path(os.environ.get("HF_HUB_CACHE") or Path(home, "hub"))
    folder = cache / f"models--{repository.replace('/', '--')}"
    try:
        commits = [(folder / "refs" / "main").read_text(encoding="utf-8").strip()]
    except (OSError, ValueError):
        commits = sorted(path.name for path in folder.glob("snapshots/*"))
    for commit in commits:
        config = folder / "snapshots" / commit / "config.json"
        if "/" not in commit and config.is_file():
            return config
    return None


def from_config(config: Mapping[str, Any] | str | Path | object) -> Model:
    """As `read_config`, with its notes as warnings."""
    result = read_config(config)
    for note in result.notes:
        warnings.warn(note, stacklevel=3)
    return result.model


def read_config(config: Mapping[str, Any] | str | Path | object) -> ReadConfig:
    """Read a Hugging Face config.

    Args:
        config: path of a ``config.json`` or of the directory that holds it, a dict, or an object
            with ``to_dict`` (``PretrainedConfig``).

    Raises:
        UsageError: no such file, no JSON, no transformer, a missing or impossible value.
    """
    values, label, name = _load(config)
    notes: list[str] = []
    values = _language_part(values, label, notes)
    family = values.get("model_type")
    if family is not None and not isinstance(family, str):
        raise UsageError(f"model_type in {label} must be a word, not {family!r}.")
    keys = Keys(values=values, label=label, family=family or "Llama-like", notes=notes)
    fields = _fields(keys, family or "")
    fields |= attention_kinds(keys, fields["layers"])
    own_name = str(values.get("_name_or_path") or "").rstrip("/").rsplit("/", 1)[-1]
    try:
        model = Model(name=own_name or name or family or "model", **fields)
        classes = _classes(values)
        model = model.classifier(classes) if classes else model
    except UsageError as error:
        raise UsageError(f"{label}: {error}") from error
    return ReadConfig(model=model, notes=tuple(notes))


def _classes(values: Mapping[str, Any]) -> int:
    """Classes of a model that classifies sequences; 0 for every other."""
    if not _is_called(values, _CLASSIFIER):
        return 0
    labels = values.get("id2label")
    return len(cast("Mapping[str, object]", labels)) if isinstance(labels, Mapping) else 2


def _is_called(values: Mapping[str, Any], ending: str) -> bool:
    """Whether one of the named architectures has that ending."""
    architectures = values.get("architectures")
    names = cast("list[object]", architectures) if isinstance(architectures, list) else []
    return any(str(each).endswith(ending) for each in names)


def _fields(keys: Keys, family: str) -> dict[str, Any]:
    reader = FAMILIES.get(family)
    if reader is not None:
        return reader(keys)
    families = ", ".join(sorted(FAMILIES))
    if keys.values.get("is_encoder_decoder"):
        raise UsageError(
            f"{keys.label} describes an encoder-decoder ({family or 'no model_type'}). One stack "
            f"of blocks can be described: {families}. Use Model.from_module, or workbench measure "
            "train.py."
        )
    unlike = sorted(
        key for key, value in keys.values.items() if value and _OTHER_BLOCKS.search(key)
    )
    if unlike:
        raise UsageError(
            f"{keys.label} has model_type {family or 'none'!r}, which is not known, and "
            f"{', '.join(unlike[:4])}: it has other blocks than attention with an MLP. Use "
            "Model.from_module, or workbench measure train.py."
        )
    missing = [names[0] for names in (LAYERS, HIDDEN, HEADS) if not _any(keys, names)]
    if missing:
        raise UsageError(
            f"{keys.label} has model_type {family or 'none'!r} and no {', '.join(missing)}. Known "
            f"types: {families}; others need Llama's keys. Add them, or use Model.from_module."
        )
    kind, read = _likeness(keys)
    finding = f"{family!r} is not a known model_type" if family else "there is no model_type"
    keys.notes.append(f"{keys.label}: {finding}; read as {kind}. Compare the parameter count.")
    return read(keys)


def _likeness(keys: Keys) -> tuple[str, Callable[[Keys], dict[str, Any]]]:
    """What an unknown type's keys are like, in words, and the reader of that."""
    if is_like_bert(keys):
        return "BERT", like_bert
    kind, read = "mixture of experts with Llama's blocks" if _any(keys, EXPERTS) else "Llama", llama
    if keys.has("kv_lora_rank") and keys.has("qk_nope_head_dim"):
        kind, read = "DeepSeek's compressed attention (MLA)", deepseek
    elif _is_called(keys.values, "ForMaskedLM"):
        kind, read = f"{kind} that sees both directions", _encoder
    if any(key.startswith("linear_") for key in keys.values):
        kind += ", its linear blocks' projections as attention's"
    return kind, read


def _encoder(keys: Keys) -> dict[str, Any]:
    return {**llama(keys), "kind": "encoder"}


def _any(keys: Keys, names: tuple[str, ...]) -> bool:
    return any(keys.has(name) for name in names)


def _language_part(values: Mapping[str, Any], label: str, notes: list[str]) -> Mapping[str, Any]:
    """The config itself, or the language model inside a multimodal one."""
    for part in NESTED:
        inner = values.get(part)
        # Voxtral and InternVL 3 repeat the width outside; a flat file has its blocks there, too.
        if inner is None or all(
            any(values.get(name) is not None for name in names) for names in (LAYERS, HIDDEN)
        ):
            continue
        if not isinstance(inner, Mapping):
            raise UsageError(f"{part} in {label} must be an object, not {inner!r}.")
        text = cast("Mapping[str, Any]", inner)
        outer = {key: values[key] for key in _OF_THE_WHOLE if key in values}
        if any(name in text for name in NESTED):  # Qwen-Omni: the thinker has a text_config
            return _language_part({**outer, **text}, label, notes)
        notes.append(f"{label} is multimodal: only {part} is described, no image or audio tower.")
        return {**outer, **text}
    if values.get("vision_config"):
        notes.append(f"{label} is multimodal: its image or audio tower is not described.")
    return values


def _load(config: object) -> tuple[Mapping[str, Any], str, str]:
    """The values, what to call them in messages, and a name for the model."""
    if isinstance(config, Mapping):
        return cast("Mapping[str, Any]", config), "the config", ""
    if isinstance(config, str | os.PathLike):
        return _load_file(Path(os.fspath(cast("str", config))).expanduser())
    to_dict = getattr(config, "to_dict", None)
    if callable(to_dict):
        values = to_dict()
        if isinstance(values, Mapping):
            label = type(config).__name__
            return cast("Mapping[str, Any]", values), label, ""
    raise UsageError(
        "A config must be a path, a dict or an object with to_dict(), not "
        f"{type(config).__name__}. For a module use Model.from_module, for a published shape "
        "Model.catalog."
    )


def _load_file(path: Path) -> tuple[Mapping[str, Any], str, str]:
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        where = "no config.json in that folder" if path.is_dir() else "no file or directory there"
        by_name = (
            f"; a published shape is found by its name alone: {path.name}, in Python "
            f"Model.catalog({path.name!r})"
            if is_published(path.name) and not path.is_dir()
            else ""
        )
        raise UsageError(
            f"'{path}' cannot be read: {where}. Give the path of a config.json, or of the folder "
            f"that holds one{by_name}."
        )
    try:
        if file.stat().st_size > MOST_BYTES:
            raise UsageError(f"{file} is too large for a config. Give the path of a config.json.")
        values = json.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{file} is not JSON ({error}). Give the path of a Hugging Face config.json."
        ) from error
    if not isinstance(values, dict):
        raise UsageError(f"{file} must hold an object {{…}}, not a {type(values).__name__}.")
    if "_class_name" in values:
        raise UsageError(
            f"{file} describes {values['_class_name']}, a diffusers model. Use Model.from_module."
        )
    return cast("Mapping[str, Any]", values), str(file), file.absolute().parent.name

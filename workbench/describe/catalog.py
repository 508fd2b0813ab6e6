"""The catalog: published model shapes and accelerators by any usual name.

Both files are read on first use, once. Every row names its source and its date.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.describe.accelerators import Accelerator, accelerators, find
from workbench.describe.model import Model
from workbench.errors import UnknownNameError

FILE = Path(__file__).parent / "data" / "models.json"
# Words of repository names that say how a model was tuned or stored, never what shape it has.
NOISE = frozenset(
    {
        *("meta", "hf", "instruct", "chat", "it", "pt", "sft", "dpo", "uncased"),
        *("deduped", "pretrained", "base", "gguf", "awq", "gptq", "bnb", "fp8", "4bit", "unsloth"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedModel:
    """A model's shape with its provenance."""

    id: str
    """Short name, unique."""
    model: Model
    """The shape."""
    source: str
    """Repository file or paper the sizes come from."""
    date: str
    """Day the row was checked."""
    stated_parameters: int
    """The number of parameters its makers state."""
    stated_exact: bool
    """Whether that is a count (else a rounded figure)."""
    aliases: tuple[str, ...] = ()
    """Other names."""
    notes: str = ""
    """What is counted and what is not, where that is a question."""


def gpu(name: str) -> Accelerator:
    """The accelerator that people, clouds or the driver call `name`.

    Raises:
        UnknownNameError: nothing fits; near names are suggested.

    >>> gpu("NVIDIA H100 80GB HBM3").id
    'h100-sxm'
    """
    return find(name)


def gpus() -> tuple[Accelerator, ...]:
    """Every accelerator; within a family the usual one comes first."""
    return accelerators()


def model(name: str) -> Model:
    """The published shape called `name`: an id, a repository, with or without maker and tuning.

    Raises:
        UnknownNameError: nothing fits; near names are suggested.

    >>> model("meta-llama/Llama-3.1-8B-Instruct").parameters
    8030261248

    With ``-classifier`` behind it the head classifies sequences in place of predicting tokens:

    >>> model("bert-base-uncased-classifier").classes
    2
    """
    body = _CLASSIFIER.sub("", str(name))
    model = published(body).model
    return model if body == str(name) else model.classifier()


_CLASSIFIER = re.compile(r"(?<=\w)[\s_-]classifier\s*$", re.IGNORECASE)


def models() -> tuple[Model, ...]:
    """Every published shape."""
    return tuple(row.model for row in every_published())


def published(name: str) -> PublishedModel:
    """As `model`, with source, date and the stated count.

    Raises:
        UnknownNameError: nothing fits; near names are suggested.
    """
    rows_by_words = _names()
    repository = str(name).strip(" /").rsplit("/", 1)[-1]
    for text in (str(name), repository):
        row = rows_by_words.get(_words(text))
        if row is not None:
            return row
    # "base" tells BERT base from BERT large, and elsewhere means "not tuned": dropped last.
    for meaningful in ({"base"}, set[str]()):
        dropped = NOISE - meaningful
        words = tuple(word for word in _words(repository) if word not in dropped)
        if words in rows_by_words:
            return rows_by_words[words]
    raise _unknown(str(name), repository)


def is_published(name: str) -> bool:
    """Whether `published` has a shape of that name."""
    try:
        published(name)
    except UnknownNameError:
        return False
    return True


_NAMED = 8  # others of a family, the nearest first
_SAME_NAME = 0.8  # similarity of a slip of the keyboard; a newer generation is below it


def _unknown(name: str, repository: str) -> UnknownNameError:
    """A slip of the keyboard is corrected; another model never replaces this one."""
    ids = [row.id for row in every_published()]
    close = difflib.get_close_matches(repository.lower(), ids, n=3, cutoff=_SAME_NAME)
    family = re.match(r"[a-z]{2,}", repository.lower())
    relatives = [each for each in ids if family and each.startswith(family[0])]
    relatives = difflib.get_close_matches(repository.lower(), relatives, n=_NAMED, cutoff=0.0)
    if close:
        hint = f"Did you mean {' or '.join(close)}?"
    elif relatives:
        names = ", ".join(relatives)
        hint = f"Of this family the catalog has {names}; where one has the same shape, give that."
    else:
        hint = "The catalog has no such model; `workbench models` lists it."
    return UnknownNameError(
        f"Unknown model {name!r}. {hint} Any other: give its config.json or the folder of a "
        "downloaded snapshot (hub: hf download ORG/NAME config.json), in Python "
        "Model.from_config(…) or Model.from_module(module); for what is not a language model or "
        "a vision transformer (diffusion, audio): workbench measure train.py."
    )


@functools.cache
def every_published() -> tuple[PublishedModel, ...]:
    """Every published shape with its provenance."""
    return tuple(_published(row) for row in json.loads(FILE.read_text(encoding="utf-8")))


def _published(row: dict[str, Any]) -> PublishedModel:
    values = {key: value for key, value in row.items() if key not in {"shape", "aliases"}}
    aliases = tuple(row.get("aliases", ()))
    return PublishedModel(model=Model(**row["shape"]), aliases=aliases, **values)


@functools.cache
def _names() -> dict[tuple[str, ...], PublishedModel]:
    rows_by_words: dict[tuple[str, ...], PublishedModel] = {}
    for row in every_published():
        for name in (row.id, row.model.name, *row.aliases):
            rows_by_words.setdefault(_words(name), row)
    return rows_by_words


def _words(name: str) -> tuple[str, ...]:
    """Words and numbers: "Llama3-8B", "llama-3-8b" and "Llama 3 8B" are the same four."""
    text = re.sub(r"(?<=[a-z])(?<!\bfp)(?=\d)", " ", name.lower())  # fp8 is one word
    return tuple(re.findall(r"[a-z0-9]+(?:\.\d+[a-z]*)?", text))

"""A model by what names it: the catalog, a config file, or a repository in a cache."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from workbench.describe.model import Model
from workbench.errors import UnknownNameError, UsageError

_SHOWN = 80
"""Characters of a name in a message."""


def read_model(name: str | os.PathLike[str]) -> tuple[Model, tuple[str, ...]]:
    """The model of the catalog, of a config file, or of a repository in Hugging Face's cache.

    With it comes what was assumed while reading it.

    Raises:
        UsageError: no such file or name, or a config that lacks something; or it is no name.
    """
    from workbench.describe.catalog import is_published, model  # noqa: PLC0415  (reads a data file)
    from workbench.describe.configs import cached_config, read_config  # noqa: PLC0415

    if not isinstance(name, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(
            f"A model is a name of the catalog, a config.json, its folder or a Model, and not of "
            f"type {type(name).__name__}. For a config of transformers give "
            "Model.from_config(config), for a module of torch Model.from_module(module)."
        )
    text = os.fspath(name)
    if not text.strip():
        raise UsageError(
            "The model's name is empty. Give one of the catalog (workbench models lists them), or "
            "a config.json or its folder (. for this one)."
        )
    path = Path(text).expanduser()
    try:
        is_there = path.exists()
    except OSError as error:
        raise UsageError(
            f"The model {text[:_SHOWN]!r} cannot be looked up: {error.strerror}. Give one of the "
            "catalog (workbench models lists them), or a config.json or its folder."
        ) from error
    named_as_file = path.suffix == ".json" or text.startswith((".", "/", "~"))
    # A folder that happens to have a model's name, for example a run's output, hides no model.
    other_folder = path.is_dir() and not (path / "config.json").exists() and is_published(text)
    if not named_as_file and (other_folder or not is_there):
        try:
            return model(text), ()
        except UnknownNameError:
            cached = cached_config(text)
            if cached is None:
                raise
            config = read_config(cached)
            return replace(config.model, name=text.rpartition("/")[2]), tuple(config.notes)
    read = read_config(path)
    return read.model, tuple(read.notes)

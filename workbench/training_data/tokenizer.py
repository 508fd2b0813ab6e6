"""The tokenizer of a model: loaded from its folder or the hub, or one sentence why it cannot be."""

from __future__ import annotations

import importlib
import json
import os
import socket
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from workbench.errors import HostError, UsageError, pip_install

_HUB_SECONDS = 5.0


def load_tokenizer(model: str | Path) -> Any:
    """The tokenizer of a model's folder or hub name.

    Raises:
        UsageError: there is none that can be loaded.
        HostError: transformers is not installed.
    """
    folder = Path(model).expanduser()
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise UsageError(
            f"{folder} has no config.json: it is not a Hugging Face model's folder. Give the "
            "folder that save_pretrained or `hf download` wrote."
        )
    if not folder.is_dir() and _is_path(str(model)):  # else the hub is asked for a minute
        raise UsageError(_no_folder(str(model)))
    try:
        library: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise HostError(f"A tokenizer needs transformers: {pip_install('transformers')}") from error
    source = str(folder) if folder.is_dir() else str(model)
    try:
        here = folder.is_dir() or not _hub_answers()
        tokenizer = library.AutoTokenizer.from_pretrained(source, local_files_only=here)
    except Exception as error:
        raise UsageError(_why_no_tokenizer(folder, str(model), error)) from error
    _check_vocabulary(tokenizer, folder)
    return tokenizer


def _is_path(model: str) -> bool:
    """Whether it cannot be a hub name."""
    return model.startswith((".", "/", "~")) or model.count("/") > 1


def _hub_answers() -> bool:
    """Whether the hub can be reached; transformers alone would try for a minute."""
    if urllib.request.getproxies():
        return True
    hub = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    try:
        port = hub.port or (80 if hub.scheme == "http" else 443)
        socket.create_connection((hub.hostname or "", port), timeout=_HUB_SECONDS).close()
    except (OSError, ValueError):
        return False
    return True


def _no_folder(model: str) -> str:
    return f"No folder {model}. Give a Hugging Face model's folder, or a hub name OWNER/NAME."


def _why_no_tokenizer(folder: Path, model: str, error: Exception) -> str:
    if folder.is_dir():
        return (
            f"The tokenizer in {folder} cannot be loaded ({str(error).splitlines()[0][:120]}). The "
            "folder needs tokenizer.json and tokenizer_config.json beside config.json."
        )
    if model.count("/") != 1:
        return _no_folder(model)
    return (
        f"The model {model} is neither a folder here nor reachable on the hub: without a network "
        "give a folder; a gated model needs its licence accepted on its page and `hf auth login`."
    )


def embedded_tokens(model: str | Path) -> int | None:
    """How many tokens the model in a folder has embeddings for; None = it does not say."""
    try:
        config: dict[str, Any] = json.loads(Path(model, "config.json").read_text("utf-8-sig"))
    except (OSError, ValueError):
        return None
    size: Any = config.get(
        "vocab_size", config.get("text_config", dict[str, Any]()).get("vocab_size")
    )
    return size if isinstance(size, int) else None


def _check_vocabulary(tokenizer: Any, folder: Path) -> None:
    """Refuse a tokenizer with tokens that the model has no embedding for.

    Added ones that nothing writes by itself do no harm, such as Gemma 3 1B's mark of pictures; rows
    that have one are refused by themselves.
    """
    size = embedded_tokens(folder)
    if size is None or len(tokenizer) <= size:
        return
    added = {token for token, number in tokenizer.get_added_vocab().items() if number >= size}
    written = {tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token}
    template = str(tokenizer.chat_template or "")
    if (
        len(tokenizer) - len(added) > size
        or added & written
        or any(token in template for token in added)
    ):
        raise UsageError(
            f"The tokenizer has {len(tokenizer):,} tokens, and the model in {folder} embeds "
            f"{size:,}. Use the tokenizer of this model, or resize its embedding first."
        )

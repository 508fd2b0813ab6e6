"""What was measured on hosts, kept beside the runs: one file a host, and corrections from runs."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.describe import Cluster
from workbench.errors import StoreError, UsageError
from workbench.store.files import LineReader, append_line, read_json, write_json_atomic
from workbench.store.runs import Store

FOLDER = "calibrations"
_KEY = re.compile(r"[a-z0-9][a-z0-9-]{0,79}")


def host_key(cluster: Cluster, *, cpu: bool = False) -> str:
    """What makes a calibration valid: devices, their number, cores; not the host's name.

    Args:
        cluster: The machine; its nodes, price and network do not matter.
        cpu: The CPU of a machine with GPUs.

    >>> host_key(Cluster(name="a", cpu_name="Any CPU @ 2 GHz", cpu_cores=8))
    'cpu-any-cpu-2-ghz-8-cores-81164c'
    """
    gpus = () if cpu else cluster.gpus
    if gpus:
        names = sorted({gpu.name for gpu in gpus})
        text = f"gpu-{len(gpus)}x-{'-'.join(names)}-{cluster.cpu_cores or 'unknown'}-cores"
        facts = [*(gpu.name for gpu in gpus), *(str(gpu.memory_bytes) for gpu in gpus)]
    else:
        text = f"cpu-{cluster.cpu_name or 'unknown'}-{cluster.cpu_cores or 'unknown'}-cores"
        facts = [cluster.cpu_name or ""]
    slug = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:72].rstrip("-")
    digest = hashlib.sha256("\n".join([text, *facts]).encode()).hexdigest()[:6]
    return f"{slug}-{digest}"


def folder(root: str | os.PathLike[str] | None = None) -> Path:
    """``<store>/calibrations``; nothing is made. It holds no run.json, so it is no run."""
    return Store(root).root / FOLDER


def read_calibration(root: str | os.PathLike[str] | None, key: str) -> dict[str, Any] | None:
    """The kept document; None where there is none that can be read."""
    return read_json(_path(root, key, ".json"))


def write_calibration(
    root: str | os.PathLike[str] | None, key: str, document: Mapping[str, Any]
) -> Path:
    """Keep a calibration in one step: readers see the old one or the new one, whole.

    Raises:
        StoreError: the store cannot be written.
    """
    path = _path(root, key, ".json")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json_atomic(path, dict(document), indent=1)
    except OSError as error:
        raise unwritable(path, error) from error
    return path


def append_correction(
    root: str | os.PathLike[str] | None, key: str, line: Mapping[str, Any]
) -> None:
    """Add what a finished run says about an estimate; never changes an earlier line.

    Raises:
        StoreError: the store cannot be written.
    """
    path = _path(root, key, ".corrections.jsonl")
    data = json.dumps(dict(line), allow_nan=False, separators=(",", ":")).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        append_line(path, data)  # one call: lines of two writers never mix
    except OSError as error:
        raise unwritable(path, error) from error


def read_corrections(root: str | os.PathLike[str] | None, key: str) -> list[dict[str, Any]]:
    """All lines that can be read, oldest first."""
    reader, corrections = LineReader(_path(root, key, ".corrections.jsonl")), list[dict[str, Any]]()
    while lines := reader.read():
        corrections += lines
    return corrections


def _path(root: str | os.PathLike[str] | None, key: str, ending: str) -> Path:
    if _KEY.fullmatch(key) is None:
        raise UsageError(
            f"{key!r} is not a key of a host: small letters, digits and '-'. Take "
            "host_key(cluster)."
        )
    return folder(root) / f"{key}{ending}"


def unwritable(path: Path, error: OSError) -> StoreError:
    """What to say of a store that refuses."""
    return StoreError(
        f"{path} cannot be written: {error.strerror or error}. Choose another folder with "
        "--store DIR or WORKBENCH_STORE=DIR."
    )

"""Reads a ``.wandb`` file: LevelDB's log format around W&B's own protobuf records."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK_BYTES = 32768
_FILE_HEADER_BYTES = 7  # ":W&B", a magic number and the version
_FULL, _LAST = 1, 4


def records(path: Path) -> Iterator[tuple[str, Any]]:
    """(kind, record) of every record of the file."""
    from wandb.proto import wandb_internal_pb2

    data, position, record = path.read_bytes(), _FILE_HEADER_BYTES, b""
    assert data.startswith(b":W&B")
    while position + 7 <= len(data):
        if (left := _BLOCK_BYTES - position % _BLOCK_BYTES) < 7:
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        position += 7
        record += data[position : position + length]
        position += length
        if kind in {_FULL, _LAST}:
            parsed = wandb_internal_pb2.Record()
            parsed.ParseFromString(record)
            record = b""
            name = parsed.WhichOneof("record_type")
            yield name, getattr(parsed, name)


def items(listed: Any) -> dict[str, Any]:
    """The key-value items of a history, summary or config record."""
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in listed}

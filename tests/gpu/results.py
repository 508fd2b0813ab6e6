"""Measurements on GPUs as data: one JSON file per subject, each entry with device and date."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results"


def keep(subject: str, name: str, measured: dict[str, Any]) -> None:
    """Write or renew the entry `name` of `subject`; `measured` says device and versions."""
    path = FOLDER / f"{subject}.json"
    known = json.loads(path.read_text()) if path.is_file() else {}
    today = dt.datetime.now(tz=dt.timezone.utc).date().isoformat()
    known[f"{name} on {measured['device']}"] = measured | {"date": today}
    FOLDER.mkdir(exist_ok=True)
    path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def versions() -> dict[str, str | None]:
    """Of what computed."""
    import accelerate
    import torch

    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "accelerate": accelerate.__version__,
    }

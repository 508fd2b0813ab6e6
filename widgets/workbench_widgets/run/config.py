"""What the front end of one run's faces is given at first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workbench.pages.run_rows import about_run
from workbench_widgets.fallback_output import store_config


def run_config(run: Any, *, face: str, **own: Any) -> dict[str, Any]:
    """Everything the front end needs to find the run, and what is known before its first view."""
    directory, run_id = Path(run.directory), str(run.id)
    served = own["transport"] == "auto"
    config = store_config(directory.parent, face=face, served=served, run=run_id, **own)
    store_path = config["store_path"]
    config["run_path"] = (
        None if store_path is None else f"{store_path}/{directory.name}".lstrip("/")
    )
    config["directory"] = str(directory.absolute())
    config["about"] = about_run(directory)
    return config

"""The small HTML output that keeps a run on the page while the kernel cannot restore its widget.

JupyterLab restores widgets only when the kernel answers, so a reloaded page stays blank while a
cell runs, and forever after a kernel restart. The fallback's script runs on page load (in trusted
notebooks), waits for the widget, and otherwise draws the run from its files. See fallback.js.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

from IPython.display import display

from workbench_widgets import assets
from workbench_widgets.jupyter_files import served_path

_SCRIPT = """\
const root = document.querySelector('[data-workbench-fallback="%(id)s"]:not([data-claimed])');
const page = document.getElementById("jupyter-config-data");
if (root && page) {
  const config = JSON.parse(root.querySelector("script").textContent);
  const base = JSON.parse(page.textContent).baseUrl + "files/";
  const path = config.assets_path.split("/").map(encodeURIComponent).join("/");
  const loader = `workbench-${config.version}.js`;
  // the folder may be another user's: no other text than ours is run
  fetch(`${base}${path}/${loader}?v=${config.version}`, { integrity: config.integrity[loader] })
    .then((response) => response.blob())
    .then((text) => import(URL.createObjectURL(new Blob([text], { type: "text/javascript" }))))
    .then((module) => module.keep("%(id)s"), () => {});
}
"""


def fallback_html(config: dict[str, Any]) -> str:
    """Markup of the fallback: the configuration as inert, escaped JSON and a constant script."""
    identity = uuid.uuid4().hex
    data = json.dumps({**config, "fallback": True}).replace("<", "\\u003c").replace("&", "\\u0026")
    return (
        f'<div data-workbench-fallback="{identity}">'
        f'<script type="application/json">{data}</script></div>'
        f'<script type="module">{_SCRIPT % {"id": identity}}</script>'
    )


def fallback_bundle(config: dict[str, Any]) -> dict[str, str] | None:
    """MIME bundle to display, None where Jupyter does not serve the assets."""
    if not config.get("assets_path"):
        return None
    return {"text/html": fallback_html(config), "text/plain": ""}


def show(bundle: Any, config: dict[str, Any] | None = None) -> None:
    """Display a widget's MIME bundle and, with a configuration, its fallback after it.

    anywidget's bundle is a pair of data and metadata, ipywidgets' only the data.
    """
    data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
    display(data, metadata=metadata, raw=True)
    fallback = fallback_bundle(config) if config else None
    if fallback is not None:
        display(fallback, raw=True)


def face_config(*, face: str, **own: Any) -> dict[str, Any]:
    """What the JavaScript needs to find its modules; ``own`` adds what the face needs."""
    return {
        "face": face,
        "instance": uuid.uuid4().hex,
        "bundle": assets.bundle_name(face),
        "plotly": assets.plotly_name(),
        "version": assets.version(),
        "assets_path": None,
        "integrity": {},
        "store_path": None,
        "run": None,
        "run_path": None,
        **own,
    }


def store_config(
    store: Path, *, face: str, served: bool = True, opens: str | None = None, **own: Any
) -> dict[str, Any]:
    """Configuration of a face over a store; publishes the assets where Jupyter serves them.

    With ``served=False`` the front end uses the comm alone. `opens` is another face, which this one
    draws below itself from the run's files.
    """
    path = served_path(store) if served else None
    config = face_config(face=face, store_path=path, **own)
    if path is not None and assets.publish(store, face):
        config["assets_path"] = f"{path}/{assets.ASSETS_FOLDER}".lstrip("/")
        config["integrity"] = assets.integrity(face)
        if opens is not None and assets.publish(store, opens):
            config["opens"] = assets.bundle_name(opens)
            config["integrity"] |= assets.integrity(opens)
    return config

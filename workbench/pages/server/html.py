"""The one HTML page; everything on it is drawn by ``static/site.js``."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path

from workbench.pages.server import static_files
from workbench.pages.server.access import WHY_READ_ONLY

SERVER = "workbench ui"
ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">'
    '<path d="M2 3c2 7 4 9 12 9" fill="none" stroke="#1668c7" stroke-width="2.4"/></svg>'
)
_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Training workbench</title>
<link rel="icon" href="{base}/favicon.ico" type="image/svg+xml">
<link rel="stylesheet" href="{base}/static/{version}/workbench.css">
<link rel="stylesheet" href="{base}/static/{version}/site.css">
<script type="application/json" id="workbench-site">{config}</script>
<script type="module" src="{base}/static/{version}/site.js"></script>
</head>
<body data-jp-theme-light="true">
<noscript>This page needs JavaScript. In a terminal: workbench runs</noscript>
</body>
</html>
"""


def page(store: Path, version: str, *, acts: bool, base: str = "", server: str = SERVER) -> str:
    """The page of a store.

    `acts`: whether it may stop and resume runs; `base`: the path that its addresses begin with;
    `server`: what people call the server.
    """
    config = {
        "base": base,
        "server": server,
        "store": str(store),
        "version": version,
        "plotly": static_files.PLOTLY if static_files.plotly_file() else None,
        "refusal": "" if acts else WHY_READ_ONLY,
    }
    data = json.dumps(config).replace("<", "\\u003c").replace("&", "\\u0026")
    return _PAGE.format(base=escape(base), version=escape(version), config=data)

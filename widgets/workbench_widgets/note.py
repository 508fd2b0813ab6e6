"""One sentence in a form: drawn as text, never as markup."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anywidget
import traitlets

from workbench_widgets import assets
from workbench_widgets.fallback_output import store_config


class Note(anywidget.AnyWidget):
    """What a form has to say, and in which tone: ``note`` or ``bad``."""

    _esm = assets.LOADER
    config = traitlets.Dict().tag(sync=True)
    text = traitlets.Unicode("").tag(sync=True)
    tone = traitlets.Unicode("note").tag(sync=True)

    def __init__(self, store: Path) -> None:
        super().__init__(config=store_config(store, face="note.js"))
        self.on_msg(self._on_message)

    def say(self, text: str, *, bad: bool = False) -> None:
        """Replace the sentence."""
        with self.hold_sync():
            self.text, self.tone = text, "bad" if bad else "note"

    def _on_message(self, _widget: object, message: Any, _buffers: object) -> None:
        if isinstance(message, dict) and message.get("name") == "bundle":
            assets.send_asset(self, "bundle")

    def __repr__(self) -> str:
        """Plain text for terminals and saved notebooks."""
        return self.text

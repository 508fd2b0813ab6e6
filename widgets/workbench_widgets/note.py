"""One sentence in a form: drawn as text, never as markup."""

from __future__ import annotations

from pathlib import Path

import traitlets

from workbench_widgets.face import Face
from workbench_widgets.fallback_output import store_config


class Note(Face):
    """What a form has to say, and in which tone: ``note`` or ``bad``."""

    text = traitlets.Unicode("").tag(sync=True)
    tone = traitlets.Unicode("note").tag(sync=True)
    revealed = traitlets.Int(0).tag(sync=True)

    def __init__(self, store: Path) -> None:
        super().__init__(store_config(store, face="note.js"))

    def say(self, text: str, *, bad: bool = False) -> None:
        """Replace the sentence."""
        with self.hold_sync():
            self.text, self.tone = text, "bad" if bad else "note"

    def reveal(self) -> None:
        """Bring it into sight."""
        self.revealed += 1

    def __repr__(self) -> str:
        return self.text

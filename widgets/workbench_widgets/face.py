"""`Face`: what every widget does with its page, whatever it draws."""

from __future__ import annotations

from typing import Any

import anywidget
import traitlets

from workbench_widgets import assets
from workbench_widgets.answering import without_code
from workbench_widgets.presence import Presence


class Face(anywidget.AnyWidget):
    """Abstract: a subclass names its JavaScript in `config`, answers its page, and has a text.

    The text, its `repr`, is for terminals, screen readers and saved notebooks.
    """

    _esm = assets.LOADER
    config = traitlets.Dict().tag(sync=True)

    def __init__(self, config: dict[str, Any], **traits: Any) -> None:
        self.presence = Presence()
        if without_code():
            self._esm = ""
        super().__init__(config=config, **traits)
        self.on_msg(self._on_message)

    def _on_message(self, _widget: object, message: Any, _buffers: object) -> None:
        """Answer the page. Runs in the kernel's main thread or a subshell: never blocks."""
        self.presence.heard()
        kind = message.get("type") if isinstance(message, dict) else None
        if kind == "asset":
            if message.get("name") in ("bundle", "plotly"):
                assets.send_asset(self, message["name"])
        elif isinstance(kind, str):
            self._receive(kind, message)

    def _receive(self, kind: str, message: dict[str, Any]) -> None:
        """Answer any other message of the page; never blocks."""

    def send_state(self, key: Any = None) -> None:
        """Send traits to the page."""
        self.presence.message_sent()
        super().send_state(key)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """The widget; where no JavaScript runs, the same figures as text."""
        bundle = super()._repr_mimebundle_(**options)
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        if data is not None:
            data["text/plain"] = repr(self)
        return bundle

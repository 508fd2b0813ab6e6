"""The console of every command: nothing that it prints acts on the terminal but its own colours."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from workbench.store.printable import is_printable, printable


class TextConsole(Console):
    """Texts command nothing, wherever they come from: a run, a configuration, an error's words."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """As usual; Rich's own commands (colours, cursor) are no text."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            if control or is_printable(text):
                yield segment
            else:
                yield Segment(printable(text, max_line=None), style)

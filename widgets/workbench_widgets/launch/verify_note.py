"""``VerifyNote``: offers to verify that several ranks train what one does; says what differs."""

from __future__ import annotations

from collections.abc import Callable

import workbench as wb
from workbench.verifying.verify import Verification, VerifyOptions, verify
from workbench_widgets.launch.script_note import ScriptNote, target

OFFER = (
    "Verify runs five steps of this script on one rank and on several with the same samples, and "
    "names the first batch, tensor or setting that differs."
)


class VerifyNote(ScriptNote):
    """A button and a line under the form, while it would start several ranks of a script."""

    def __init__(self) -> None:
        super().__init__("Verify", "check", OFFER)

    def offered(self, request: wb.Request) -> bool:
        """Whether it is a script with several ranks on this machine."""
        return not request.recipe and request.processes > 1 and request.nodes == 1

    def what(self, request: wb.Request) -> tuple[object, ...]:
        """Another strategy or number of ranks is another question."""
        return (*target(request), request.strategy, request.processes)

    def work(self, request: wb.Request, on_progress: Callable[[str], None]) -> str:
        """Verify it; the runs are temporary."""
        options = VerifyOptions(
            ranks=(1, request.processes),
            strategy=(request.strategy.name,),
            cpu=request.device == "cpu",
        )
        return said(verify(*target(request), options, on_progress=on_progress))


def said(answer: Verification) -> str:
    """The first thing that is wrong with its cause and the next step, or that nothing is."""
    first = answer.first
    if first is None:
        compared = answer.comparison.steps
        how = f"losses and gradients of {compared} steps compared" if compared else "ranks compared"
        return f"Nothing is wrong: {'; '.join(answer.runs)}; {how}."
    return f"{first.kind}, step {first.step}: {first.evidence} {first.cause} {first.next}"

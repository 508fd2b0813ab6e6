"""``workbench replay``: a recorded run through the same view, rules and findings as when it ran."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.markup import escape

import workbench as wb
from workbench.cli.describing import with_options
from workbench.cli.live import render
from workbench.cli.tables import JsonOption, print_json
from workbench.cli.terminal import RunArgument, StoreOption, console
from workbench.describe.option import Option
from workbench.diagnose.offline import Moment, replayed
from workbench.errors import RunNotFoundError
from workbench.observe.view import ViewBuilder
from workbench.store.findings import Finding
from workbench.store.layout import RunPaths
from workbench.store.record import read_run
from workbench.store.run_record import RunRecord
from workbench.units import format_seconds

_FRAME_SECONDS = 0.25
_MOST_SECONDS = 1e9  # of one pause: more is no time that the system can wait for


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingChange:
    """A finding at the moment when the rules first told it, or told that it was over."""

    step: int
    """The furthest step at that moment."""
    elapsed_seconds: float
    """Since the run was started."""
    finding: Finding
    """As it was reported then."""

    def document(self) -> dict[str, Any]:
        """Plain JSON form."""
        document = self.finding.document()
        return {"said_at_step": self.step, "said_after_seconds": self.elapsed_seconds, **document}


class Player:
    """Feeds the looks at a recording to a view, and keeps how its findings changed."""

    def __init__(self, paths: RunPaths, run: RunRecord) -> None:
        self.builder = ViewBuilder(paths, run)
        self.changes: list[FindingChange] = []
        self.findings: list[Finding] = []
        self.looks = 0
        self.elapsed_seconds = 0.0
        self._folder, self._run = paths.directory, run

    def take(self, moment: Moment) -> list[FindingChange]:
        """Account for one look; the findings that changed in it."""
        self.looks += 1
        self.elapsed_seconds = moment.elapsed_seconds
        self.builder.add_rows(moment.rows)
        for node, sample in moment.samples:
            if node == 0:
                self.builder.add_sample(sample)
            else:
                document: Any = {"gpus": self._run.cluster.get("gpus"), "sample": sample}
                self.builder.add_node(node, document)
        new = [
            FindingChange(
                step=self.builder.steps, elapsed_seconds=moment.elapsed_seconds, finding=finding
            )
            for finding in _news(self.findings, moment.findings)
        ]
        self.findings = moment.findings
        self.changes += new
        return new

    def view(self) -> dict[str, Any]:
        """What view.json would have said at this moment, without the logs, which have no times."""
        quiet = {rank: {"log_tail": list[str]()} for rank in range(self._run.processes)}
        now = {
            **dict.fromkeys(("ended_at", "message", "world_size", "exit_code", "outcome")),
            "phase": "running",
            "started_at": self._run.created_at,
            "elapsed_seconds": round(self.elapsed_seconds, 1),
            "findings": [finding.answer(self._folder) for finding in self.findings],
            "ranks": quiet,
        }
        return self.builder.snapshot(now)


def _news(before: Sequence[Finding], after: Sequence[Finding]) -> Iterator[Finding]:
    before_states = {(finding.key, finding.cleared_at is None) for finding in before}
    return (
        finding
        for finding in after
        if (finding.key, finding.cleared_at is None) not in before_states
    )


@with_options
def replay(
    run: RunArgument = "last",
    *,
    speed: Annotated[
        float | None,
        Option(help="Times the recorded pace [default: as fast as it reads].", above=0),
    ] = None,
    until: Annotated[int | None, typer.Option(min=1, help="Stop at this step.")] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replay a recorded run: the view and findings as they were at each step.

    Nothing is written or started.
    """
    paths = wb.Store(store).locate(run)
    record = read_run(paths)
    if record is None:
        raise RunNotFoundError(f"{paths.directory} has no run.json that can be read.")
    player, watched = Player(paths, record), console.is_terminal and speed is not None
    with _screen(watched=watched and not as_json) as live:
        _play(player, paths, speed, until, live=live, quiet=as_json)
    if as_json:
        print_json(_document(paths, player, until))
    else:
        _print_end(player)


def _screen(*, watched: bool) -> AbstractContextManager[Live | None]:
    return Live(console=console, auto_refresh=False) if watched else nullcontext()


def _play(
    player: Player,
    paths: RunPaths,
    speed: float | None,
    until: int | None,
    *,
    live: Live | None,
    quiet: bool,
) -> None:
    """Take every look in its turn; with `speed` at the recorded pace."""
    began, first, shown_at = time.monotonic(), None, 0.0
    for moment in replayed(paths, until=until):
        first = moment.elapsed_seconds if first is None else first
        if speed is not None:
            due = began + (moment.elapsed_seconds - first) / speed
            time.sleep(min(_MOST_SECONDS, max(0.0, due - time.monotonic())))
        new = player.take(moment)
        out = console if live is None else live.console
        for event in () if quiet else new:
            out.print(_line(event), soft_wrap=True)
        if live is not None and time.monotonic() - shown_at >= _FRAME_SECONDS:
            shown_at = time.monotonic()
            live.update(render(paths.directory, player.view(), "replay", None, None), refresh=True)


def _line(event: FindingChange) -> str:
    finding = event.finding
    where = f" rank {finding.rank}" if finding.rank is not None else ""
    head = f"step {event.step}, {format_seconds(event.elapsed_seconds)}"
    over = "resolved" if finding.replaced_by is None else f"replaced by {finding.replaced_by}"
    text = finding.cause if finding.cleared_at is None else over
    return f"{head}  [bold]{escape(finding.kind)}[/]{where}: {escape(text)}"


def _print_end(player: Player) -> None:
    standing = [finding for finding in player.findings if finding.cleared_at is None]
    kinds = ", ".join(dict.fromkeys(finding.kind for finding in standing)) or "none"
    console.print(
        f"replayed {player.builder.steps} steps, checked {player.looks} times; "
        f"findings at the end: {kinds}",
        markup=False,
        soft_wrap=True,
    )


def _document(paths: RunPaths, player: Player, until: int | None) -> dict[str, Any]:
    return {
        "run": paths.directory.name,
        "until": until,
        "steps": player.builder.steps,
        "looks": player.looks,
        "elapsed_seconds": round(player.elapsed_seconds, 3),
        "said": [message.document() for message in player.changes],
        "findings": [finding.document() for finding in player.findings],
        "view": player.view(),
    }

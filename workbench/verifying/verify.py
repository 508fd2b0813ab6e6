"""`verify`: run a script for a few steps in two configurations, and say what differs first."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from workbench.describe import Strategy
from workbench.describe.option import Option
from workbench.describe.option_limits import check_declared
from workbench.errors import UsageError
from workbench.launching.launch import start
from workbench.launching.prepare.build_request import request
from workbench.launching.prepare.launcher_process import SINGLE_PROCESS_VARIABLES
from workbench.launching.prepare.targets import as_script_words, resolve
from workbench.launching.run import Run
from workbench.measuring.batches import declared_option
from workbench.measuring.short_run import ShortRunError, last_output
from workbench.store import processes
from workbench.store.layout import RunPaths
from workbench.store.measurements import batch_argument
from workbench.store.record import starts_ranks
from workbench.store.runs import Store
from workbench.verifying.comparing import NO_NUMBERS, Comparison, compare
from workbench.verifying.judging import judge
from workbench.verifying.schedule_rules import rate_notes
from workbench.verifying.trace import Trace, read_trace
from workbench.verifying.verdict import Verdict

VARIABLE = "WORKBENCH_VERIFY"
_POLL_SECONDS = 0.1
_SETTLE_SECONDS = 20.0
_RECIPES = "--micro-batch"  # of every recipe: samples of a rank in one micro-step


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """What is run to verify a script."""

    ranks: Annotated[
        tuple[int, ...], Option(help="Numbers of ranks to compare.", split="commas", metavar="N,N")
    ] = (1, 2)
    """Of two runs; one number with two strategies."""
    strategy: Annotated[
        tuple[str, ...],
        Option(help="Strategy of several ranks; two are compared.", split="commas", metavar="S,S"),
    ] = ("ddp",)
    """As for a launch."""
    steps: Annotated[int, Option(help="Optimizer steps of each run.", least=1)] = 5
    """More find what comes late: a second epoch, an evaluation."""
    cpu: Annotated[bool, Option(help="Use CPU ranks even if there are GPUs.")] = False
    """As for a launch."""
    timeout: Annotated[float, Option(help="Time limit of each run in seconds.", above=0)] = 300.0
    """A rank that waits for another would wait forever."""
    keep: Annotated[str | None, Option(help="Keep the runs in this run store.", metavar="DIR")] = (
        None
    )
    """Default: they are in a temporary folder and deleted."""

    def __post_init__(self) -> None:
        if min(self.ranks, default=0) < 1 or max(self.ranks) < 2 or len(self.ranks) > 2:
            raise UsageError(
                f"--ranks {','.join(map(str, self.ranks))}: give one or two numbers, the larger at "
                "least 2, such as 1,2."
            )
        if not 1 <= len(self.strategy) <= 2:
            raise UsageError("--strategy takes one name, or two to compare, such as ddp,fsdp.")
        check_declared(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The answer: what was run, how far it could be compared, and what differs."""

    script: str
    """As it was given."""
    runs: tuple[str, ...]
    """What ran, in order."""
    steps: int
    """Steps that each rank made."""
    comparison: Comparison
    """Of values; what must hold whatever the batch is always asked."""
    verdicts: tuple[Verdict, ...]
    """By where in the training they show first."""
    notes: tuple[str, ...] = ()
    """What someone should know of how it was done."""
    kept: str | None = None
    """Store of the runs, where they were kept."""

    @property
    def first(self) -> Verdict | None:
        """The first thing that is wrong; None = nothing is."""
        return next((verdict for verdict in self.verdicts if verdict.severity != "note"), None)

    def document(self) -> dict[str, Any]:
        """The JSON form; keys are a contract."""
        return {
            "script": self.script,
            "runs": list(self.runs),
            "steps": self.steps,
            "correct": self.first is None,
            "comparison": asdict(self.comparison),
            "verdicts": [verdict.document() for verdict in self.verdicts],
            "notes": list(self.notes),
            "kept": self.kept,
        }


class VerifyError(ShortRunError):
    """A script could not be verified; `log` is what it said last."""


def verify(
    script: str | os.PathLike[str],
    arguments: Sequence[Any] = (),
    options: VerifyOptions | None = None,
    *,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Verification:
    """Run a script for a few steps on N ranks and on one with the same samples; compare them.

    Args:
        script: Path of a Python script, a module (``-m package.train``) or a recipe.
        arguments: Its own arguments.
        options: What to run; default: 1 and 2 ranks under DDP for five steps.
        on_progress: Called with a line of what is under way.

    Raises:
        VerifyError: it failed on several ranks, or made no optimizer step.
        UsageError: there is no such script or strategy.
    """
    chosen = options or VerifyOptions()
    resolve(os.fspath(script))
    words = tuple(as_script_words(arguments))
    with _store(chosen.keep) as store:
        bench = _Bench(os.fspath(script), words, chosen, store, on_progress)
        return bench.verification()


@contextlib.contextmanager
def _store(keep: str | None) -> Generator[Store]:
    if keep is not None:
        yield Store(keep)
        return
    with tempfile.TemporaryDirectory(
        prefix="workbench-verify-", ignore_cleanup_errors=True
    ) as folder:
        yield Store(folder)


@dataclass(slots=True)
class _Bench:
    """Runs the configurations of one verification."""

    script: str
    arguments: tuple[str, ...]
    options: VerifyOptions
    store: Store
    on_progress: Callable[[str], None]
    notes: list[str] = field(default_factory=list[str])
    runs: list[str] = field(default_factory=list[str])

    def verification(self) -> Verification:
        """Run, read, compare."""
        options = self.options
        size = max(options.ranks)
        parallel = self._trace(options.strategy[-1], size)
        other = self._other(parallel, size)
        verdicts = judge(parallel, other)
        comparison = Comparison(steps=0, why="the script does not run in the other configuration")
        if other is not None:
            if len(other.ranks) > 1:
                kinds = {verdict.kind for verdict in verdicts}
                verdicts += [verdict for verdict in judge(other, None) if verdict.kind not in kinds]
            comparison, values = compare(parallel, other)
            verdicts += self._repeatable(parallel, values) if values else []
            rates = rate_notes(parallel, other if len(other.ranks) == 1 else None)
            self.notes += [rates] if rates else []
        if any(rank.dropouts or rank.eval_dropouts for rank in parallel.ranks):
            self.notes.append("dropout is off in these runs, so that they can be compared")
        self.notes.append(
            "torch.compile is off (TORCHDYNAMO_DISABLE=1); random numbers that the script does not "
            "seed have a fixed seed of each rank"
        )
        return Verification(
            script=self.script,
            runs=tuple(self.runs),
            steps=parallel.steps,
            comparison=comparison,
            verdicts=tuple(sorted(verdicts, key=lambda verdict: verdict.place)),
            notes=tuple(self.notes),
            kept=self.options.keep,
        )

    def _other(self, parallel: Trace, size: int) -> Trace | None:
        """The run to compare with; None where the script does not run so."""
        options = self.options
        strategies = list(options.strategy)
        try:
            if len(strategies) > 1:
                return self._trace(strategies[0], size)
            fewer = min(options.ranks)
            factor = size // parallel.split // max(1, fewer) if fewer < size else 1
            arguments, batch = self._larger(parallel, factor)
            return self._trace(strategies[-1], fewer, batch, arguments)
        except VerifyError as error:
            self.notes.append(f"not compared with another run: {str(error).splitlines()[0]}")
            return None

    def _larger(self, parallel: Trace, factor: int) -> tuple[tuple[str, ...], list[int] | None]:
        """Arguments, and batch sizes of loaders, with which fewer ranks read as many samples."""
        feed = parallel.ranks[0].feed
        size = feed.get("batch_size") if feed is not None else None
        if factor <= 1 or size:
            return self.arguments, [size, size * factor] if size and factor > 1 else None
        batch_option = batch_argument(self.arguments)
        if batch_option is not None:
            return tuple(batch_option.replaced(self.arguments, batch_option.value * factor)), None
        target, batches = resolve(self.script), parallel.ranks[0].steps[0].batches
        option = declared_option(target.path)
        seen = (option.default if option else None) or len(batches[0].samples if batches else ())
        name = _RECIPES if target.recipe else None if option is None else option.name
        if name is None or not seen:
            return self.arguments, None
        return (*self.arguments, f"{name}={seen * factor}"), None

    def _repeatable(self, parallel: Trace, values: list[Verdict]) -> list[Verdict]:
        """Values that differ are a note where the script does not repeat itself either."""
        again, _ = compare(parallel, self._trace(self.options.strategy[-1], len(parallel.ranks)))
        noise = max(again.loss or 0.0, again.gradient or 0.0)
        if again.why == NO_NUMBERS or (again.steps and noise <= (again.bound or 0.0)):
            return values
        own = f"two runs of {parallel.label} differ by {noise:.2g}" if again.steps else again.why
        cause = f"The script does not repeat itself: {own}."
        return [replace(verdict, severity="note", cause=cause) for verdict in values]

    def _trace(
        self,
        strategy: str,
        ranks: int,
        batch: list[int] | None = None,
        arguments: tuple[str, ...] | None = None,
    ) -> Trace:
        """One run of a few steps.

        Raises:
            VerifyError: it failed, or made no step.
        """
        name = "single" if ranks == 1 else strategy
        layout = Strategy.parse(name, ranks)
        label = "1 rank" if ranks == 1 else f"{ranks} ranks, {strategy}"
        title = label if batch is None else f"{label}, batches of {batch[1]} instead of {batch[0]}"
        if arguments is not None and arguments != self.arguments:
            title += f", {arguments[-1]}"
        settings = json.dumps({"steps": self.options.steps, "batch": batch})
        variables = {VARIABLE: settings, "TORCHDYNAMO_DISABLE": "1"}
        prepared = request(
            self.script,
            self.arguments if arguments is None else arguments,
            strategy=name,
            processes=ranks,
            cpu=self.options.cpu,
            warm=True,
            name=f"verify-{Path(self.script.split()[-1]).stem}",
            store=self.store,
            environment=variables | (SINGLE_PROCESS_VARIABLES if ranks == 1 else {}),
        )
        run = start(replace(prepared, part_of="verify"))
        self.runs.append(title)
        self._await(run, title)
        trace = read_trace(run.directory, label, layout.tp * layout.cp * layout.pp)
        if len(trace.ranks) < ranks or not trace.steps:
            raise _why(run, trace, title)
        if run.status.outcome == "failed" and trace.steps < self.options.steps:
            self.notes.append(f"{title}: failed after step {trace.steps}: {_message(run)}.")
        return trace

    def _await(self, run: Run, title: str) -> None:
        try:
            self._watch(run, title)
        except VerifyError:
            raise
        except BaseException as error:  # a Ctrl-C, or `on_progress` wants it to end
            if isinstance(error, KeyboardInterrupt):
                self.on_progress("stopping")
            run.stop(now=True)
            self._settle(run)
            raise
        self._settle(run)

    def _watch(self, run: Run, title: str) -> None:
        begun = time.monotonic()
        while run.status.live:
            if time.monotonic() - begun > self.options.timeout:
                evidence = [f"{finding.evidence} {finding.cause}" for finding in run.findings()]
                run.stop(now=True)
                raise VerifyError(
                    f"{title}: not done within {self.options.timeout:g} s. "
                    + (evidence[0] if evidence else "Give a smaller batch or a longer --timeout."),
                    last_output(run),
                )
            steps = (run.view() or {}).get("steps") or 0
            self.on_progress(f"{title}: step {steps}" if steps else f"{title}: starting")
            time.sleep(_POLL_SECONDS)

    def _settle(self, run: Run) -> None:
        """Wait for the run's last process: its folder may be deleted."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        marker = str(run.document.get("marker"))
        while processes.find_marked(marker, run.directory) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)


def _why(run: Run, trace: Trace, title: str) -> VerifyError:
    status, log = run.status, last_output(run)
    if status.outcome in {"succeeded", "no-steps"}:
        if starts_ranks(RunPaths(run.directory)):
            return VerifyError(
                f"{title}: the script starts its ranks itself (torch.multiprocessing), so each of "
                "them would start as many again. Verify the function that it starts, as a script "
                "that takes RANK and WORLD_SIZE from torchrun.",
                log,
            )
        return VerifyError(
            f"{title}: {len(trace.ranks)} ranks were seen, with {trace.steps} optimizer steps. "
            "Give the script arguments with which it trains.",
            log,
        )
    return VerifyError(f"{title}: the script ended before it was verified. {_message(run)}.", log)


def _message(run: Run) -> str:
    """What the run says of its end, without the place of a log that will be deleted."""
    return (run.status.message or "").partition("; the full traceback is in ")[0].rstrip(".")

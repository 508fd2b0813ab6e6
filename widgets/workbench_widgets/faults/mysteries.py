"""Mysteries: recordings of real runs, sealed, and one live run. Rank, phase and cause are asked.

    cases = mysteries.sealed()
    print(cases["A"].evidence())
    print(cases["A"].grade((1, "optimizer", "slow rank")))

What is shown is what the rules read; their findings stay closed until an answer is right. The
answers are kept as hashes, so that they are not read by accident.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import lzma
import random
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import workbench as wb
from workbench.diagnose.offline import diagnose_offline
from workbench.observe.arrival_window import PHASES, ArrivalWindow, combined, read_window
from workbench.observe.events import recorded_rows
from workbench.store.files import LineReader
from workbench.store.findings import Finding
from workbench.store.layout import RunPaths
from workbench.store.record import read_run
from workbench.units import format_seconds
from workbench_widgets.faults import faults

DATA = Path(__file__).with_name("mysteries.json.xz")
EVERYWHERE = ("exchange", "none")
CAUSES = {
    "slow rank": "its processor, its GPU, or code that it alone runs",
    "slow loader": "its batches come late",
    "unequal batches": "it has more to compute than the others",
    "slow link": "all ranks come together, and the exchange takes long",
    "nothing": "a healthy run",
}
"""What an answer may name, and what it means."""
_CAUSE_OF = {
    "straggler": "slow rank",
    "input-bound": "slow loader",
    "imbalanced-work": "unequal batches",
    "communication-bound": "slow link",
}
_HINTS = {
    "rank": "Hint: the rank that the others wait for waits least itself. Where all wait as long, "
    "it is None.",
    "phase": "Hint: compare each column of that rank with the same column of the others; where no "
    "rank stands out, compare the exchange with the step.",
    "cause": "Hint: the phase leaves two or three causes; the samples column and the line on the "
    "exchange tell them apart.",
}
_PARTS = tuple(_HINTS)
_STEPS = 40  # shown
Answer = tuple[int | None, str, str]
"""Rank (None = no rank), phase, cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mystery:
    """One run whose trouble is to be named."""

    name: str
    """How answers call it."""
    paths: RunPaths
    """Its files."""
    seals: Mapping[str, str]
    """Part of the answer -> hash of the right one."""
    explain: Callable[[], str]
    """What the rules say of it."""

    def evidence(self) -> str:
        """Each rank's mean step of the latest ones, as text."""
        return _evidence(self.name, self.paths)

    def grade(self, answer: Sequence[object] | None) -> str:
        """Right or wrong by parts, each with a hint; all right: what the rules said.

        Args:
            answer: Rank, phase and cause; None = not answered yet.

        Raises:
            UsageError: it has other parts, or a rank, phase or cause that there is none of.
        """
        if answer is None:
            return f"{self.name}: not answered yet"
        answers = dict(zip(_PARTS, _checked(answer), strict=True))
        wrong = [
            part for part in _PARTS if _seal(self.name, part, answers[part]) != self.seals[part]
        ]
        if not wrong:
            return f"{self.name}: right.\n  {self.explain()}"
        lines = [f"{self.name}: {', '.join(wrong)} wrong."]
        return "\n  ".join([*lines, _HINTS[wrong[0]]])


def sealed(folder: Path | None = None) -> dict[str, Mystery]:
    """The recorded mysteries by name; `folder`: where their runs are unpacked."""
    place = folder or _own_folder()
    by_name: dict[str, Mystery] = {}
    for name, value in json.loads(lzma.decompress(DATA.read_bytes())).items():
        paths = RunPaths(place / f"mystery-{name}")
        paths.directory.mkdir(parents=True, exist_ok=True)
        paths.make_folders()
        for file, text in value["files"].items():
            (paths.directory / file).write_text(text, encoding="utf-8")
        by_name[name] = Mystery(
            name=name, paths=paths, seals=value["seals"], explain=_explanation_of(paths)
        )
    return by_name


def _own_folder() -> Path:
    """A folder that is there until this process ends."""
    folder = tempfile.mkdtemp(prefix="mysteries-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def live(
    name: str = "live", *, seed: int | None = None, ranks: int = 4, steps: int = 60
) -> Mystery:
    """Start a training of `ranks` CPU processes, do something to one of them, and stop it.

    Args:
        name: How answers call it.
        seed: Which rank and fault are drawn; None = by chance.
        ranks: How many processes.
        steps: So many steps are made with the fault.

    Raises:
        WorkbenchError: it did not train.
    """
    chance = random.Random(seed)  # noqa: S311
    rank = chance.randrange(ranks)
    fault, phase, cause = chance.choice(
        (("straggler", "forward", "slow rank"), ("slow-loader", "input", "slow loader"))
    )
    run = faults.start(steps=100_000, step_ms=30, checkpoint_every=0, name=name, ranks=ranks)
    try:
        faults.trained(run, 20)
        faults.inject(run, fault, rank=rank, ms=90)
        faults.trained(run, run.view()["steps"] + steps)
    finally:
        run.stop()
    paths = RunPaths(Path(run.directory))
    return Mystery(
        name=name,
        paths=paths,
        seals=seals(name, (rank, phase, cause)),
        explain=_explanation_of(paths),
    )


def seals(name: str, answer: Answer) -> dict[str, str]:
    """What is kept of the right answer."""
    return {part: _seal(name, part, text) for part, text in zip(_PARTS, answer, strict=True)}


def answer_of(findings: Sequence[Finding]) -> Answer:
    """The answer that findings give: that of the first one on time that is lost."""
    for finding in findings:
        if finding.kind in _CAUSE_OF:
            return finding.rank, finding.phase or EVERYWHERE[0], _CAUSE_OF[finding.kind]
    return None, EVERYWHERE[1], "nothing"


def _seal(name: str, part: str, value: object) -> str:
    return hashlib.sha256(f"{name}/{part}/{value}".encode()).hexdigest()[:24]


def _checked(answer: Sequence[object]) -> Sequence[object]:
    example = '(1, "optimizer", "slow rank")'
    if isinstance(answer, str) or len(answer) != len(_PARTS):
        raise wb.UsageError(f"The answer is {answer!r}; give rank, phase and cause: {example}.")
    if not isinstance(answer[0], int | None):
        raise wb.UsageError(f"There is no rank {answer[0]!r}. Give its number, or None.")
    for part, value, allowed in (
        ("phase", answer[1], [*PHASES, *EVERYWHERE]),
        ("cause", answer[2], list(CAUSES)),
    ):
        if value not in allowed:
            raise wb.UsageError(f"There is no {part} {value!r}. Choose from: {', '.join(allowed)}.")
    return answer


def _explanation_of(paths: RunPaths) -> Callable[[], str]:
    def explanation() -> str:
        listed = [finding for finding in diagnose_offline(paths) if finding.kind in _CAUSE_OF]
        if not listed:
            return "The rules found nothing either: uneven steps alone are not a finding."
        finding = listed[0]
        return f"{finding.kind}: {finding.cause}\n  {finding.evidence}"

    return explanation


def _latest(paths: RunPaths) -> ArrivalWindow:
    """The latest steps of a run as one."""
    lines = LineReader(paths.arrivals).read()
    windows = [window for line in lines if (window := read_window(line)) is not None]
    chosen: list[ArrivalWindow] = []
    for window in reversed(windows):
        if sum(earlier.steps for earlier in chosen) >= _STEPS:
            break
        chosen.append(window)
    merged = combined(chosen[::-1])
    if merged is None:
        raise wb.WorkbenchError(f"{paths.directory} has no steps in which ranks met.")
    return merged


def _evidence(name: str, paths: RunPaths) -> str:
    run, window = read_run(paths), _latest(paths)
    ranks = len(window.ranks) if run is None else run.processes
    rows = list(recorded_rows(paths, ranks))[-_STEPS:]
    columns = ("waits", *PHASES, "no core", "samples")
    lines = [
        f"{name}: {ranks} ranks, {window.steps} steps, {format_seconds(window.step_seconds)} each",
        " ".join(f"{text:>10}" for text in ("rank", *columns)),
    ]
    for rank, own in sorted(window.ranks.items()):
        samples = [row.rank_samples[rank] for row in rows if rank in row.rank_samples]
        seconds = (own.wait, *(own.own.get(phase, 0.0) for phase in PHASES), own.queued)
        cells = [str(rank), *(f"{1000 * part:.0f} ms" for part in seconds)]
        cells.append(f"{fmean(samples):.0f}" if samples else "n/a")
        lines.append(" ".join(f"{text:>10}" for text in cells))
    exchange = window.exchange_seconds
    if exchange is not None:
        lines.append(
            f"After the last rank has come, the exchange takes {format_seconds(exchange)}."
        )
    return "\n".join(lines)

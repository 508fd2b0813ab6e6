"""Healthy runs of real scripts: what the diagnosis says of them, which should be nothing.

    python -m tests.diagnose.healthy [--beside 3] [--only NAME] [--rounds 1] [--keep FILE]

Scripts of the tests and the recipes, under every strategy, on 2 and 4 warm ranks, several runs beside
one another, so that no rank has a core of its own. Printed: each finding, and how many of each kind.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import workbench as wb
from tests.diagnose import recordings
from tests.diagnose.grid import OWN, SCRIPT, STRATEGIES
from tests.diagnose.record import record
from tests.measure.cases import CASES as MEASURED
from tests.verify.cases import CORRECT
from workbench.errors import WorkbenchError

TESTS = Path(__file__).parent.parent
_SECONDS = 45.0  # then it is stopped: what it has told by then counts
TRUE = frozenset({"same-data", "no-distributed-sampler", "needless-find-unused"})
"""What is so of some of these scripts: they were written for one process, or by a library."""
_TINY = ("--layers", "4", "--hidden", "64", "--heads", "4", "--seq-len", "64", "--steps", "40")


@dataclass(frozen=True, slots=True, kw_only=True)
class Healthy:
    """One run in which nothing is wrong."""

    script: str | Path
    """A script, or a recipe's name."""
    arguments: tuple[str, ...] = ()
    """Of the script."""
    strategy: str = "ddp"
    """As launched."""
    ranks: int = 2
    """Processes."""
    wrap: str | None = None
    """Class that FSDP wraps."""

    @property
    def name(self) -> str:
        """For files."""
        script = self.script
        if isinstance(script, Path):
            among = script.parent.parent.name if script.parent.parent != TESTS.parent else ""
            script = f"{among}-{script.stem}"
        plain = script.strip("-").replace("_", "-").removesuffix("-style")
        more = self.arguments[1] if self.script == SCRIPT else ""
        return "-".join(filter(None, (plain, more, self.strategy, f"x{self.ranks}")))


def cases() -> list[Healthy]:
    """Every script under the strategies that it knows."""
    scripts = TESTS / "scripts"
    found = [Healthy(script=one, ranks=2) for one in CORRECT]
    found += [
        Healthy(
            script=TESTS / "measure" / "scripts" / one.script, arguments=one.arguments,
            strategy=one.strategy, wrap=one.wrap,
        )
        for one in MEASURED
    ]  # fmt: skip
    for strategy, ranks in (("ddp", 4), ("fsdp", 2), ("zero2", 2), ("zero2", 4), ("zero3", 2)):
        loop = ("--steps", "60", "--accumulate", "1")
        found.append(Healthy(script=scripts / "accelerate_loop.py", arguments=loop,
                             strategy=strategy, ranks=ranks))  # fmt: skip
        found.append(Healthy(script="gpt", arguments=_TINY, strategy=strategy, ranks=ranks))
    found += [
        Healthy(script=scripts / "hf_trainer.py", arguments=("--steps", "30"), strategy=strategy)
        for strategy in ("ddp", "fsdp")
    ]
    found += [
        Healthy(script=scripts / "raw_ddp.py", ranks=ranks,
                arguments=("--steps", "300"))
        for ranks in (2, 4)
    ]  # fmt: skip
    found += [
        Healthy(script="gpt", arguments=_TINY, strategy=strategy, ranks=ranks)
        for strategy in ("tp", "cp", "pp")
        for ranks in (2, 4)
    ]
    found += [
        Healthy(script=recipe, arguments=("--steps", "30"), strategy=strategy)
        for recipe, strategy in (
            *(("lora", "ddp"), ("vision", "ddp"), ("vision", "zero2"), ("tensor_parallel", "tp")),
            *(("context_parallel", "cp"), ("pipeline", "pp"), ("deepspeed_pipeline", "pp")),
        )
    ]
    found += [
        Healthy(
            script=SCRIPT, strategy="ddp" if strategy in OWN else strategy, ranks=ranks,
            arguments=("--strategy", strategy, "--work", "0.03", "--steps", "60"),
        )
        for strategy in STRATEGIES
        for ranks in (2, 4)
    ]  # fmt: skip
    return found


def run(case: Healthy, store: Path) -> wb.Run:
    """Launch it and wait for its end; a long one is stopped."""
    more = {} if case.wrap is None else {"wrap": case.wrap}
    started = wb.launch(
        case.script, case.arguments, cpu=True, store=store, warm=True, processes=case.ranks,
        strategy=case.strategy, name=case.name, **more,
    )  # fmt: skip
    try:
        started.wait(timeout=_SECONDS)
    except WorkbenchError:
        started.stop()
        started.wait(timeout=60)
    return started


def results(chosen: list[Healthy], store: Path, beside: int) -> Iterator[tuple[Healthy, wb.Run]]:
    """Each case with its finished run, so many at a time."""
    with ThreadPoolExecutor(beside) as pool:
        running = [(one, pool.submit(run, one, store)) for one in chosen]
        for case, one in running:
            try:
                yield case, one.result()
            except WorkbenchError as error:
                print(f"{case.name} did not start: {error}", flush=True)


def main() -> None:
    """Run all and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--beside", type=int, default=3, help="runs at a time")
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="keep the recordings in this .json.xz")
    parser.add_argument("--store", type=Path, help="keep the run directories here")
    options = parser.parse_args()
    chosen = [one for one in cases() if options.only in one.name] * options.rounds
    kinds, outcomes, wrong = Counter[str](), Counter[str](), 0
    kept: dict[str, dict[str, str]] = {}
    store = options.store and options.store.absolute()
    keep = options.keep and options.keep.absolute()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # some scripts write into it
        for case, finished in results(chosen, store or Path(folder), options.beside):
            said, outcome = finished.findings(), finished.status.outcome or "n/a"
            outcomes[outcome] += 1
            kinds.update(one.kind for one in said)
            wrong += any(one.kind not in TRUE for one in said)
            print(f"{case.name:44} {outcome:10} load {os.getloadavg()[0]:4.1f}", flush=True)
            for one in said:
                rank = "" if one.rank is None else f" rank {one.rank}"
                print(f"    {one.kind}{rank} ({one.severity}): {one.evidence}", flush=True)
            if keep:
                kept[f"{case.name}-{len(kept)}"] = record(Path(finished.directory))
        if keep:
            recordings.save(keep, kept)
    print(
        f"{len(chosen)} healthy runs: {dict(outcomes)}; findings: {dict(kinds.most_common())}; "
        f"runs with one that is not so: {wrong}"
    )


if __name__ == "__main__":
    main()

"""Two to ten runs set beside each other: what differs, what came of it, and what a loss cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.compare import alignment, index
from workbench.compare.differences import configuration, differing, results
from workbench.compare.lineage import Branch, ancestry
from workbench.errors import UsageError
from workbench.observe.curves import Curve
from workbench.observe.rows import row
from workbench.observe.series import Series, read_series
from workbench.store.commands import command_in
from workbench.store.files import read_json
from workbench.store.layout import RunPaths
from workbench.store.runs import Store
from workbench.store.starts import read_attempts

MOST = 10
"""Most runs of a comparison: more cannot be told apart in one figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Runs compared with each other."""

    rows: Mapping[str, Mapping[str, Any]]
    """The table's row of each run, by id, in the order asked for."""
    curves: Mapping[str, Curve]
    """Their curves."""
    lineage: Sequence[Branch]
    """The runs and those that they began from, as trees."""
    configuration: Sequence[Mapping[str, Any]]
    """``{"what", "values": {run: value}}`` for whatever was asked for differently."""
    results: Sequence[Mapping[str, Any]]
    """``{"what", "unit", "values": {run: value}}``."""

    logged: Sequence[Mapping[str, Any]] = ()
    """``{"name", "better", "last": {…}, "best": {…}}`` of what two of the runs logged."""

    def cost_to_reach(self, loss: float | None = None) -> dict[str, Any]:
        """What each run took to reach `loss`; by default the highest of their last losses.

        Returns:
            ``{"loss", "chosen": "given" or "highest last loss", "runs": {run: {"step", "tokens",
            "seconds", "usd", "resolution_steps"} or None}}``.
        """
        target = alignment.common_loss(self.curves) if loss is None else loss
        reached = {
            run: None if target is None else alignment.cost_to_reach(curve, target)
            for run, curve in self.curves.items()
        }
        return {
            "loss": target,
            "chosen": "highest last loss" if loss is None else "given",
            "runs": {run: point and point.document() for run, point in reached.items()},
        }

    def document(self, *, by: str = "step", loss: float | None = None) -> dict[str, Any]:
        """Plain JSON form: what ``workbench compare --json`` prints.

        Raises:
            UnknownNameError: `by` is none of step, tokens, time, usd.
        """
        return {
            "runs": list(self.rows),
            "lineage": [branch.document() for branch in self.lineage],
            "configuration": list(self.configuration),
            "results": list(self.results),
            "logged": list(self.logged),
            "aligned": alignment.aligned(self.curves, by),
            "reach": self.cost_to_reach(loss),
        }


def find(store: Store, names: Sequence[str]) -> list[RunPaths]:
    """The runs of those ids, prefixes or names, each once.

    Raises:
        RunNotFoundError: one is not there.
        UsageError: they are not two to `MOST` different runs.
    """
    names = [names] if isinstance(names, str) else names  # one name is no list of letters
    chosen = {paths.directory.name: paths for paths in map(store.locate, names)}
    for paths in chosen.values():
        if paths.directory.parent != store.root:
            raise UsageError(
                f"{paths.directory} is not in {store.root}, and runs of one store are compared. "
                f"Name it: --store {paths.directory.parent}"
            )
    if not 2 <= len(chosen) <= MOST:
        raise UsageError(
            f"{len(chosen)} run{'s' * (len(chosen) != 1)} given; give 2 to {MOST} different runs. "
            f"List them: {command_in(store.root, 'runs')}"
        )
    return list(chosen.values())


def compare(store: Store, names: Sequence[str]) -> Comparison:
    """Set runs of a store beside each other.

    Raises:
        RunNotFoundError: one is not there.
        UsageError: they are not two to `MOST` different runs.
    """
    paths = {run_paths.directory.name: run_paths for run_paths in find(store, names)}
    curves = {run: index.curve(store, run) for run in paths}
    rows = {run: row(run_paths, curves[run]) for run, run_paths in paths.items()}
    configurations = {
        run: configuration(read_json(run_paths.run) or {}, read_attempts(run_paths))
        for run, run_paths in paths.items()
    }
    return Comparison(
        rows=rows,
        curves=curves,
        lineage=ancestry(store, rows),
        configuration=differing(configurations),
        results=results(rows),
        logged=_logged({run: read_series(run_paths) for run, run_paths in paths.items()}),
    )


def _logged(series: Mapping[str, Sequence[Series]]) -> list[Mapping[str, Any]]:
    """Names that at least two of the runs logged, with each run's last and best value."""
    of_name: dict[str, dict[str, Series]] = {}
    for run, logged in series.items():
        for entry in logged:
            of_name.setdefault(entry.name, {})[run] = entry
    return [
        {
            "name": name,
            "better": next(iter(logged.values())).better,
            "last": {run: logged[run].last if run in logged else None for run in series},
            "best": {run: logged[run].best if run in logged else None for run in series},
        }
        for name, logged in of_name.items()
        if len(logged) > 1
    ]

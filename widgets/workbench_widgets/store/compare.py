"""``Compare``: choose runs, overlay their curves, see what differed and what a loss cost."""

from __future__ import annotations

import functools
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import traitlets

import workbench as wb
from workbench.compare import index
from workbench.compare.deletion import check_deletable, delete, size
from workbench.compare.filters import choose
from workbench.compare.runs import MOST
from workbench.compare.runs import compare as set_beside
from workbench.errors import sentence
from workbench.observe.curves import Curve
from workbench.observe.series import Series, read_series
from workbench.observe.thinning import Number, round_significant
from workbench.observe.view_json import finite
from workbench.store.labels import change_labels
from workbench.units import format_bytes
from workbench_widgets.answering import in_background
from workbench_widgets.face import Face
from workbench_widgets.fallback_output import store_config
from workbench_widgets.options import refuse_extra

_ROWS_MAX = 300  # what a page can list; a condition brings up the others
_COLUMNS = (
    *("run", "name", "state", "outcome", "strategy", "processes", "steps", "loss_last", "hours"),
    *("nonfinite_step", "usd", "created_at", "rehearsal", "tags", "note", "archived"),
)
_CURVE = ("step", "tokens", "seconds", "usd", "loss")
_LOSS = "loss"
_Run = str | wb.Run | Mapping[str, Any]
_Runs = Sequence[_Run] | _Run


def _named(run: Any) -> Any:
    """What a store finds a run by: a handle's id, that of a row of `wb.runs`, or what is given."""
    if isinstance(run, wb.Run):
        return run.id
    return run.get("run") if isinstance(run, Mapping) else run  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]


class Compare(Face):
    """Runs of a store beside each other: table, overlaid curves, differences, cost of a loss.

    Args:
        runs: The runs that are ticked at first, 2 to 10: ids, names, handles (`wb.Run`) or rows of
            `wb.runs`.
        store: Folder of runs; default ``$WORKBENCH_STORE``, else ``./runs``.
        where: Which runs are listed at first, as for ``workbench runs --where``.

    Raises:
        TypeError: an unknown option.
        RunNotFoundError: `runs` names a run that is not in the store.
        UsageError: `where` cannot be read, or there are more than 10 `runs`.
    """

    rows = traitlets.List().tag(sync=True)
    listed = traitlets.Dict().tag(sync=True)
    picked = traitlets.List().tag(sync=True)
    comparison = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        runs: _Runs = (),
        *,
        store: str | Path | None = None,
        where: str = "",
        **unknown: object,
    ) -> None:
        refuse_extra(Compare, unknown)
        self.store = wb.Store(store)
        self._working = threading.RLock()
        self._filter: dict[str, Any] = {"where": where, "archived": False, "sort": None}
        self._loss: float | None = None
        self._shown_series = _LOSS
        super().__init__(
            store_config(self.store.root, face="compare_runs.js", most=MOST),
            picked=self._run_ids(runs),
            **self._list(),
        )
        self._set_beside()

    def pick(self, runs: _Runs, loss: float | None = None) -> None:
        """Set these runs beside each other; `loss` is the one whose cost is asked for.

        Raises:
            RunNotFoundError: some are not in the store; nothing is changed then.
            UsageError: they are more than 10.
        """
        with self._working:
            self.picked = self._run_ids(runs)
            self._loss = loss
            self._relist()  # what is set beside is read now: the table must not say otherwise
            self._set_beside()

    def _run_ids(self, runs: _Runs) -> list[str]:
        """Ids of runs that are given by id, name, handle or row, each once."""
        ids: dict[str, None] = {}
        unknown: dict[str, wb.RunNotFoundError] = {}
        for run in map(_named, [runs] if isinstance(runs, str | wb.Run | Mapping) else runs):
            try:
                ids[self.store.find(run).directory.name] = None
            except wb.RunNotFoundError as error:
                unknown[run] = error
        if len(unknown) == 1:
            raise next(iter(unknown.values()))
        if unknown:
            raise wb.RunNotFoundError(f"No runs {_quoted(unknown)} in {self.store.root}.")
        if len(ids) > MOST:
            raise wb.UsageError(f"{len(ids)} runs given; 2 to {MOST} can be compared.")
        return list(ids)

    def show(self, name: str) -> None:
        """Draw the curves of what the runs logged as `name`; ``"loss"`` is the training loss."""
        with self._working:
            self._shown_series = name
            self._set_beside()

    def refresh(self) -> None:
        """Read the store and the runs now."""
        with self._working:
            self._relist()
            there = set(self.store.ids()) if self.picked else set()
            if not set(self.picked) <= there:
                self.picked = [run for run in self.picked if run in there]
            self._set_beside()

    def refresh_later(self) -> None:
        """`refresh` in a thread; what goes wrong is said on the face."""
        self._begin(self._on_refresh, {})

    def _relist(self) -> None:
        listed = self._list()
        self.rows, self.listed = listed["rows"], listed["listed"]

    def _list(self) -> dict[str, Any]:
        every = index.table(self.store)
        matching = choose(every, **self._filter)
        rows = [{key: row[key] for key in _COLUMNS} for row in matching[:_ROWS_MAX]]
        listed = {**self._filter, "found": len(matching), "of": len(every)}
        return {"rows": finite(rows), "listed": listed}

    def _set_beside(self) -> None:
        if len(self.picked) < 2:
            self.comparison = {}
            return
        try:
            comparison = set_beside(self.store, self.picked)
        except wb.WorkbenchError as error:
            self.comparison = {"problem": sentence(error)}
            return
        logged = {run: _logged(self.store, run) for run in comparison.curves}
        series_names = list(dict.fromkeys(name for names in logged.values() for name in names))
        series_name = self._shown_series if self._shown_series in series_names else _LOSS
        curves = {
            run: _columns(
                curve if series_name == _LOSS else _placed(logged[run].get(series_name), curve)
            )
            for run, curve in comparison.curves.items()
        }
        names = self._names({run: str(row["name"]) for run, row in comparison.rows.items()})
        document = comparison.document(loss=self._loss)
        self.comparison = finite(
            document
            | {
                "curves": curves,
                "names": names,
                "logged": [_LOSS, *series_names],
                "shown": series_name,
            }
        )

    def _names(self, run_names: dict[str, str]) -> dict[str, str]:
        """Display names; the id where another run has that name, too, or is called so."""
        used_names = [*run_names.values(), *(folder for _, folder in self.store.folders())]
        return {run: run if used_names.count(name) > 1 else name for run, name in run_names.items()}

    def _receive(self, kind: str, message: dict[str, Any]) -> None:
        """Whatever reads the store does so in a thread: nothing blocks."""
        work: Callable[[dict[str, Any]], str] | None = {
            "pick": self._on_pick,
            "list": self._on_list,
            "refresh": self._on_refresh,
            "show": self._on_show,
            "label": self._on_label,
            "size": self._on_size,
            "delete": self._on_delete,
        }.get(kind)
        if work is not None:
            self._begin(work, message)

    def _begin(self, work: Callable[[dict[str, Any]], str], message: dict[str, Any]) -> None:
        answer = functools.partial(self._answer, work, message)
        in_background(answer, "workbench-compare")

    def _answer(self, work: Callable[[dict[str, Any]], str], message: dict[str, Any]) -> None:
        with self._working:
            try:
                text = work(message)
            except (wb.WorkbenchError, OSError) as error:
                self.send({"type": "said", "bad": True, "text": sentence(error)})
            else:
                problem = "" if text else str(self.comparison.get("problem") or "")
                self.send({"type": "said", "bad": bool(problem), "text": text or problem})

    def _on_pick(self, message: dict[str, Any]) -> str:
        runs, loss = message.get("runs"), message.get("loss")
        if isinstance(runs, list):
            number = isinstance(loss, int | float) and not isinstance(loss, bool)
            picked = [str(run) for run in runs]
            listed = {row["run"] for row in self.rows} | set(self.picked)  # a filter hides some
            if strange := dict.fromkeys(run for run in picked if run not in listed):
                raise wb.RunNotFoundError(f"Not listed here: {_quoted(strange)}. Press Refresh.")
            self.pick(picked, loss if number else None)
        return ""

    def _on_list(self, message: dict[str, Any]) -> str:
        before, sort = self._filter, message.get("sort")
        self._filter = {
            "where": str(message.get("where") or "")[:500],
            "archived": bool(message.get("archived")),
            "sort": sort if isinstance(sort, str) else None,
        }
        try:
            self._relist()
        except wb.WorkbenchError:
            self._filter = before
            raise
        return ""

    def _on_refresh(self, _message: dict[str, Any]) -> str:
        self.refresh()
        return ""

    def _on_show(self, message: dict[str, Any]) -> str:
        self.show(str(message.get("name") or _LOSS))
        return ""

    def _on_label(self, message: dict[str, Any]) -> str:
        paths = self.store.find(self._listed_run(message))
        note, archived, tags = message.get("note"), message.get("archived"), message.get("tags")
        old_tags = next(row["tags"] for row in self.rows if row["run"] == paths.directory.name)
        new_tags = str(tags).split() if isinstance(tags, str) else old_tags
        change_labels(
            paths,
            add=new_tags,
            remove=set(old_tags) - set(new_tags),
            note=note if isinstance(note, str) else None,
            archived=archived if isinstance(archived, bool) else None,
        )
        self.refresh()
        hidden = archived is True and not self._filter["archived"]
        return f"{paths.directory.name} is archived; select Archived to see it." if hidden else ""

    def _on_size(self, message: dict[str, Any]) -> str:
        deletion = size(check_deletable(self.store, self._listed_run(message)))
        saved = f", {deletion.checkpoints} checkpoints" if deletion.checkpoints else ""
        return (
            f"Press again to delete {deletion.run} permanently: {deletion.files:,} files{saved}, "
            f"{format_bytes(deletion.bytes)}."
        )

    def _on_delete(self, message: dict[str, Any]) -> str:
        freed = delete(self.store, self._listed_run(message))
        self.refresh()
        return f"{freed.run} is deleted; {format_bytes(freed.bytes)} freed."

    def _listed_run(self, message: dict[str, Any]) -> str:
        """Only what the table shows can be acted on."""
        run = message.get("run")
        if not isinstance(run, str) or run not in {row["run"] for row in self.rows}:
            raise wb.RunNotFoundError(f"No run {run!r} is listed.")
        return str(run)

    def __repr__(self) -> str:
        lines = [
            f"Compare: {len(self.rows)} runs of {self.store.root}, {len(self.picked)} selected"
        ]
        target: Any = self.comparison.get("reach")
        if target is None or target["loss"] is None:  # nothing is set beside, or nothing has a loss
            problem = self.comparison.get("problem", "")
            selected = [f"  {run}" for run in self.picked]
            return "\n".join(filter(None, [*lines, *selected, problem]))
        for run in self.picked:
            reached = target["runs"].get(run)
            step = "never" if not reached else f"at step {reached['step']}"
            lines.append(f"  {run}: loss {target['loss']} {step}")
        return "\n".join(lines)


def _quoted(runs: Iterable[str]) -> str:
    return ", ".join(map(repr, runs))


def _logged(store: wb.Store, run: str) -> dict[str, Series]:
    """Name -> its series, of what a run logged beside the training loss."""
    return {series.name: series for series in read_series(store.find(run)) if series.name != _LOSS}


def _placed(series: Series | None, curve: Curve) -> Curve:
    """A logged series as a curve: at its steps, with the tokens, seconds and dollars of the run."""
    if series is None:
        return Curve()

    def at(step: Number, column: Sequence[Number]) -> Number:
        points = [
            (x, y) for x, y in zip(curve.step, column, strict=True) if not (x is None or y is None)
        ]
        if step is None or not points or step > points[-1][0]:
            return None
        place = bisect_left(points, step, key=lambda point: point[0])
        (x, y), (before, start) = points[place], points[place - 1] if place else (0, 0)
        return y if x == before else start + (y - start) * (step - before) / (x - before)

    def along(column: Sequence[Number]) -> tuple[Number, ...]:
        return tuple(at(step, column) for step in series.step)

    return Curve(
        step=series.step,
        loss=series.mean,
        tokens=along(curve.tokens),
        seconds=along(curve.seconds),
        usd=along(curve.usd),
    )


def _columns(curve: Curve) -> dict[str, list[Number]]:
    """What the figure draws, short enough for ten runs in one message."""
    return {name: [round_significant(value) for value in getattr(curve, name)] for name in _CURVE}

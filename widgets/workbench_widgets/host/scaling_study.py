"""``ScalingStudy``: run the same work on more and more ranks, and see what each size loses."""

from __future__ import annotations

import shlex
import threading
from pathlib import Path
from typing import Any

import traitlets

import workbench as wb
from workbench.compare.scaling_study import ScalingStudy as Study
from workbench.compare.scaling_study import scale
from workbench.compare.studies.study import Progress, StudyStoppedError
from workbench.recipes import recipes
from workbench.units import format_seconds
from workbench_widgets.face import Face, sentence
from workbench_widgets.fallback_output import store_config
from workbench_widgets.options import refuse_unknown

_OPTIONS = ("target", "arguments", "sizes", "mode", "to", "steps", "cpu", "store")
_FIELDS = ("target", "arguments", "sizes", "mode", "to", "steps")
_CAUSES = {
    "compute": "compute",
    "communication": "exchange",
    "waiting": "slowest rank",
    "data": "data",
}


class ScalingStudy(Face):
    """The scaling study as a face: what to run, Start and Stop, its trials live, its curve.

    Args:
        target: A recipe's name or a script.
        arguments: Of it, as typed on a command line.
        sizes: Numbers of ranks, between commas.
        mode: weak, strong or both.
        to: Numbers of ranks to extrapolate to; "" = none.
        steps: Of each run.
        cpu: Use CPU ranks even if there are GPUs.
        store: Folder of runs; default ``$WORKBENCH_STORE``, else ``./runs``.

    ``study`` is the finished study, None before.

    Raises:
        TypeError: an unknown option.
    """

    fields = traitlets.Dict().tag(sync=True)
    state = traitlets.Dict().tag(sync=True)
    _stop: threading.Event | None = None

    def __init__(
        self,
        *,
        target: str = "gpt",
        arguments: str = "",
        sizes: str = "1,2",
        mode: str = "weak",
        to: str = "4,8",
        steps: int = 30,
        cpu: bool = False,
        store: str | Path | None = None,
        **unknown: object,
    ) -> None:
        refuse_unknown("ScalingStudy", unknown, _OPTIONS)
        self.store = Path(wb.Store(store).root)
        self.study: Study | None = None
        self._cpu = cpu
        self._thread: threading.Thread | None = None
        given = (target, arguments, sizes, mode, to, str(steps))
        super().__init__(
            store_config(self.store, face="scaling_study.js", recipes=list(recipes())),
            fields=dict(zip(_FIELDS, given, strict=True)),
            state=_idle("No measurements yet."),
        )

    def start(self, **fields: str) -> None:
        """Begin in the background; `fields` replace what the form says.

        Raises:
            TypeError: an unknown field.
            UsageError: the study before still runs.
        """
        refuse_unknown(
            "ScalingStudy.start", {k: v for k, v in fields.items() if k not in _FIELDS}, _FIELDS
        )
        if self._thread is not None and self._thread.is_alive():
            raise wb.UsageError("The study is still running. Stop it first, or wait.")
        self.fields = {**self.fields, **{name: str(value) for name, value in fields.items()}}
        self._stop = threading.Event()
        self.state = {**_idle("Checking …"), "busy": True}
        self._thread = threading.Thread(target=self._run, name="workbench-scaling", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the present run and the study; the finished trials are kept."""
        if self._stop is not None:
            self._stop.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the study has ended; whether it has."""
        if self._thread is not None:
            self._thread.join(timeout)
        return self._thread is None or not self._thread.is_alive()

    def _run(self) -> None:
        try:
            given = self.fields
            self.study = scale(
                given["target"].strip(),
                shlex.split(given["arguments"]),
                sizes=_numbers(given["sizes"]),
                mode=given["mode"],
                to=_numbers(given["to"]),
                steps=int(given["steps"]),
                cpu=self._cpu,
                store=self.store,
                on_progress=self._show_progress,
                stop=self._stop,
            )
            self.state = {**_shown(self.study), "busy": False}
        except StudyStoppedError as error:
            self.state = {**self.state, "busy": False, "now": "", "note": str(error)}
        except Exception as error:  # noqa: BLE001 - whatever it is, the form has to say it
            self.state = {
                **self.state,
                "busy": False,
                "now": "",
                "note": sentence(error),
                "bad": True,
            }

    def _show_progress(self, now: Progress) -> None:
        of = f" of {now.of}" if now.of else ""
        text = f"Run {now.done + 1}{of}: {now.label} ranks, step {now.steps}"
        self.state = {**self.state, "now": text, "note": "", "done": now.done, "of": now.of}

    def _receive(self, kind: str, message: dict[str, Any]) -> None:
        if kind == "start" and isinstance(message.get("fields"), dict):
            fields = {k: str(v)[:2000] for k, v in message["fields"].items() if k in _FIELDS}
            try:
                self.start(**fields)
            except wb.WorkbenchError as error:
                self.state = {**self.state, "note": str(error), "bad": True}
        elif kind == "stop":
            self.stop()

    def close(self) -> None:
        """End the widget and its study; finished trials are kept."""
        self.stop()
        super().close()

    def __repr__(self) -> str:
        """Plain text for terminals, screen readers and saved notebooks."""
        note = self.state["now"] or self.state["note"]
        head = f"ScalingStudy of {self.fields['target']}, {self.fields['sizes']} ranks"
        return f"{head}\n{self.study}" if self.study and not note else f"{head}: {note}"


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(one) for one in text.split(",") if one.strip()}))
    except ValueError:
        raise wb.UsageError(
            f"{text!r}: give whole numbers separated by commas, for example 1,2,4."
        ) from None


def _idle(note: str) -> dict[str, Any]:
    return {
        "busy": False,
        "now": "",
        "note": note,
        "bad": False,
        "done": 0,
        "of": None,
        "curves": [],
        "notes": [],
    }


def _shown(study: Study) -> dict[str, Any]:
    """The study's figures and words, ready to be drawn."""
    failed = [f"{one.label}: {one.outcome}, {one.problem}" for one in study.results if not one.good]
    return {
        **_idle("" if study.curves else "No size could be measured."),
        "bad": not study.curves,
        "where": "GPUs" if study.cores is None else "ranks",
        "curves": [
            {"mode": one.mode, "points": [_point(p) for p in one.points]} for one in study.curves
        ],
        "notes": [*failed, *study.notes],
    }


def _point(point: Any) -> dict[str, Any]:
    ends = (format_seconds(point.low_seconds), format_seconds(point.high_seconds))
    ideal = point.efficiency * point.step_seconds  # of the first size's step, in this one's work
    return {
        "ranks": point.ranks,
        "measured": point.measured,
        "step": format_seconds(point.step_seconds),
        "range": f"{ends[0]} to {ends[1]}",
        "efficiency": point.efficiency,
        "least": ideal / point.high_seconds if point.high_seconds else None,
        "most": ideal / point.low_seconds if point.low_seconds else None,
        "lost": {_CAUSES[name]: share for name, share in point.lost.items()},
    }

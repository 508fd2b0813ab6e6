"""``ScalingStudy``: run the same work on more and more ranks, and see what each size loses."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import traitlets

import workbench as wb
from workbench.compare.scaling_study import ScalingStudy as Study
from workbench.compare.scaling_study import scale
from workbench.compare.studies.bench import LAUNCHED, Progress
from workbench.compare.studies.sizes import Sizes
from workbench.compare.studies.study import StudyStoppedError
from workbench.describe.option import declared, text_of
from workbench.errors import sentence
from workbench.recipes import recipes
from workbench.units import format_seconds
from workbench_widgets.face import Face
from workbench_widgets.fallback_output import store_config
from workbench_widgets.options import as_typed, refuse_unknown

_SIZES = {name: size for name, size in declared(Sizes).items() if name != "global_batch"}
"""The controls of a study beside what runs; a script's global batch is for the command."""
_FIELDS = ("target", "arguments", "strategy", *_SIZES)
_LAUNCH_NAMES = tuple(name for name in LAUNCHED if name not in _FIELDS)
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
        arguments: Of it, as typed on a command line, or a list.
        options: The first values of the other controls, as ``wb.scale`` takes them (``sizes``,
            ``mode``, ``to``, ``steps``, ``strategy``), and what has no control: ``cpu``,
            ``store``, ``warm``, ``wrap``, ``environment``, ``options`` of the strategy.

    ``study`` is the finished study, None before.

    Raises:
        TypeError: an unknown option.
    """

    fields = traitlets.Dict().tag(sync=True)
    state = traitlets.Dict().tag(sync=True)
    _stop: threading.Event | None = None

    def __init__(
        self, target: str | Path = "gpt", arguments: str | Sequence[Any] = "", **options: Any
    ) -> None:
        allowed = (*_FIELDS, *_LAUNCH_NAMES)
        refuse_unknown("ScalingStudy", options, allowed)
        self.store = Path(wb.Store(options.get("store")).root)
        self.study: Study | None = None
        self._launch_options = {name: options[name] for name in _LAUNCH_NAMES if name in options}
        self._thread: threading.Thread | None = None
        first = {name: text_of(options.get(name, size.default)) for name, size in _SIZES.items()}
        if "to" not in options:
            most = _SIZES["sizes"].read(first["sizes"])[-1]
            first["to"] = f"{2 * most},{4 * most}"
        strategy = options.get("strategy") or ""
        config = {"recipes": list(recipes()), "modes": list(_SIZES["mode"].option.choices)}
        super().__init__(
            store_config(self.store, face="scaling_study.js", **config),
            fields={
                "target": str(target),
                "arguments": as_typed(arguments),
                "strategy": strategy,
                **first,
            },
            state=_idle("No measurements yet."),
        )

    def start(self, **fields: Any) -> None:
        """Begin in the background; `fields` replace what the form says.

        Raises:
            TypeError: an unknown field.
            UsageError: the study before still runs.
        """
        refuse_unknown("ScalingStudy.start", fields, _FIELDS)
        if self._thread is not None and self._thread.is_alive():
            raise wb.UsageError("The study is still running. Stop it first, or wait.")
        texts = {"arguments": as_typed}
        given = {name: texts.get(name, text_of)(value) for name, value in fields.items()}
        self.fields = {**self.fields, **given}
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
            values = {name: text.strip() for name, text in self.fields.items()}
            self.study = scale(
                values.pop("target"),
                shlex.split(values.pop("arguments")),
                **{**self._launch_options, **values, "strategy": values["strategy"] or None},
                on_progress=self._show_progress,
                stop=self._stop,
            )
            self.state = {**_document(self.study), "busy": False}
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
        note = self.state["now"] or self.state["note"]
        head = f"ScalingStudy of {self.fields['target']}, {self.fields['sizes']} ranks"
        return f"{head}\n{self.study}" if self.study and not note else f"{head}: {note}"


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


def _document(study: Study) -> dict[str, Any]:
    """The study's figures and words, ready to be drawn."""
    failed = [
        f"{result.label}: {result.outcome}, {result.problem}"
        for result in study.results
        if not result.good
    ]
    return {
        **_idle("" if study.curves else "No size could be measured."),
        "bad": not study.curves,
        "where": "GPUs" if study.cores is None else "ranks",
        "curves": [
            {"mode": curve.mode, "points": [_point(p) for p in curve.points]}
            for curve in study.curves
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

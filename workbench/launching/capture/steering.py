"""What is asked of a training at a step boundary: values, a look at tensors, a save, an evaluation.

All ranks do it after the same step, or none does. A request names that step, which lies ahead. Each
rank's listening thread answers whether it heard of it in time. At the boundary a rank waits for all
these answers, and the first to have them writes the decision, once for all: a hard link has one
winner. A rank whose answer does not come has the request dropped by all.

``steering/NAME/``: ``request.json``, ``heard-R``, ``decision`` and ``result-R.json``, see `store`.
``control/steer`` has the names, one a line; it is of one attempt.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable
from typing import Any

from .overrides import Override, Overrides, changeable
from .pulse import SAVING
from .writers import LineWriter, write_json

ACTIONS = ("set", "look", "checkpoint", "evaluate")
GO, IN_TIME, LATE = "go", "in time", "late"
FOLDER, BELL = "steering", "steer"
_NAME = re.compile(r"[0-9]{6,24}-[a-z]{1,20}")
_PATIENCE_SECONDS = 10.0  # for the answer of another rank's thread, which looks twice a second
_LOOK_SECONDS = 0.005
_UNKNOWN = {
    "checkpoint": "How this script saves its state is not known: scripts with an Accelerator or "
    "transformers' Trainer and the recipes are asked to. Save in the loop, every so many steps.",
    "evaluate": "How this script evaluates is not known: transformers' Trainer and the recipes "
    "gpt, vision, recsys and finetune are asked. Evaluate a checkpoint in a process of its own.",
}


class RankRequest:
    """One request, as a rank sees it."""

    def __init__(self, folder: str, rank: int, document: dict[str, Any]) -> None:
        self.folder, self.rank, self.document = folder, rank, document
        self.action, self.at = str(document["action"]), int(document["at"])
        self.ranks = int(document["ranks"])

    def path(self, name: str) -> str:
        """A file of the request."""
        return os.path.join(self.folder, name)

    def answer(self, text: str) -> None:
        """Tell whether this rank heard of it in time; only the first answer counts."""
        _write_once(self.path(f"heard-{self.rank}"), text)

    def decision(self) -> str:
        """``go``, or why nothing is done; the same on every rank. Waits for the others."""
        begun = time.monotonic()
        while (decided := _read(self.path("decision"))) is None:
            heard = {rank: _read(self.path(f"heard-{rank}")) for rank in range(self.ranks)}
            missing = [rank for rank, text in heard.items() if text is None]
            late = [rank for rank, text in heard.items() if text == LATE]
            if late:
                _write_once(
                    self.path("decision"), f"{LATE}: rank {late[0]} was past step {self.at}"
                )
            elif not missing:
                _write_once(self.path("decision"), GO)
            elif time.monotonic() - begun > _PATIENCE_SECONDS:
                _write_once(self.path("decision"), f"rank {missing[0]} did not answer")
            time.sleep(_LOOK_SECONDS)
            if time.monotonic() - begun > 2 * _PATIENCE_SECONDS:
                return "the run directory cannot be written"
        return decided

    def result(self, *, done: bool, **facts: Any) -> None:
        """Leave what came of it on this rank; of rank 0 also in the run's journal."""
        path = self.path(f"result-{self.rank}.json")
        if os.path.exists(path):
            return
        write_json(path, {"rank": self.rank, "done": done, "at": self.at, **facts})
        if self.rank == 0:
            document = self.document
            line = {
                "time": round(time.time(), 3),
                "by": str(document.get("by", "")),
                "action": self.action,
                "arguments": [str(word) for word in document.get("words", [])],
                "limits": "",
                "step": self.at,
                "done": done,
                **({"why": facts["why"]} if facts.get("why") else {}),
            }
            run = os.path.dirname(os.path.dirname(self.folder))
            writer = LineWriter(os.path.join(run, "actions.jsonl"))
            writer.write(json.dumps(line).encode() + b"\n")
            writer.close()


class Steering:
    """The requests of one rank. `hear` is called by its listening thread, the rest by training."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._seen_names: set[str] = set()
        self._waiting: list[RankRequest] = []
        self._pending: dict[
            str, RankRequest
        ] = {}  # a save or an evaluation that the loop is to make
        self._setting: list[tuple[RankRequest, list[Override]]] = []

    def hear(self, names: str) -> None:
        """Take in the requests that are named and new."""
        for name in names.split():
            if name not in self._seen_names and _NAME.fullmatch(name):
                self._seen_names.add(name)
                with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                    self._take_in(os.path.join(self._recorder.folder, FOLDER, name))

    def _take_in(self, folder: str) -> None:
        with open(os.path.join(folder, "request.json"), encoding="utf-8") as file:
            request = RankRequest(folder, self._recorder.rank, json.load(file))
        if request.action not in ACTIONS:
            return
        # First among those that wait, then the look at the step: whoever finds the step ahead is
        # sure that the training finds the request.
        self._waiting.append(request)
        in_time = self._recorder.steps < request.at
        request.answer(IN_TIME if in_time else LATE)
        if not in_time:
            with contextlib.suppress(ValueError):
                self._waiting.remove(request)

    def boundary(self) -> None:
        """An optimizer step was counted: what is due after it. Never raises."""
        step = self._recorder.steps
        due = [request for request in self._waiting if request.at <= step]
        for request in due:
            try:
                self._waiting.remove(request)
                decided = self._standing_still(request.decision)
                if decided == GO:
                    self._begin(request)
                else:
                    request.result(done=False, why=decided)
            except Exception as error:
                request.result(done=False, why=f"{type(error).__name__}: {error}")

    def _standing_still(self, wait: Callable[[], str]) -> str:
        recorder, begun = self._recorder, time.perf_counter()
        phase = recorder.pulse.phase
        recorder.pulse.beat(SAVING, recorder.steps)
        try:
            return wait()
        finally:
            recorder.not_data(time.perf_counter() - begun)
            recorder.pulse.beat(phase, recorder.steps)

    def _begin(self, request: RankRequest) -> None:
        if request.action == "set":
            self._set(request)
        elif request.action == "look":
            from .tensor_looks import begin  # noqa: PLC0415  (hardly any rank needs it)

            begin(self._recorder, request)
        else:
            self._pending[request.action] = request

    def _set(self, request: RankRequest) -> None:
        lead = self._recorder.lead()
        settings = changeable(lead)
        values = {str(name): float(value) for name, value in request.document["values"].items()}
        unknown = sorted(set(values) - set(settings))
        if unknown:
            has = (
                f"It has {', '.join(settings)}." if settings else "No optimizer of torch was seen."
            )
            request.result(done=False, why=f"The optimizer has no value {unknown[0]!r}. {has}")
            return
        hold = bool(request.document.get("hold"))
        changes = [
            Override(request.at + 1, name, value, hold=hold or name != "lr")
            for name, value in values.items()
        ]
        if self._recorder.overrides is None:
            self._recorder.overrides = Overrides()
        for change in changes:
            self._recorder.overrides.add(change)
        self._setting.append((request, changes))
        self._recorder.changed = self.changed

    def changed(self) -> None:
        """An optimizer stepped: values that it used for the first time are known now, and told."""
        waiting: list[tuple[RankRequest, list[Override]]] = []
        for request, changes in self._setting:
            if any(change.factor is None for change in changes):
                waiting.append((request, changes))
            else:
                request.result(done=True, changes=[change.document() for change in changes])
        self._setting = waiting
        if not waiting:
            self._recorder.changed = None

    def take(self, action: str) -> RankRequest | None:
        """Whether a loop that can do it does `action` now; it then calls `RankRequest.result`."""
        return self._pending.pop(action, None)

    def before_backward(self) -> None:
        """No loop took what was asked: Accelerate saves; of other scripts no one knows how."""
        for action in list(self._pending):
            request = self._pending.pop(action)
            if action == "checkpoint" and self._recorder.accelerator is not None:
                from .graceful_stop import save_now  # noqa: PLC0415  (which imports the recorder)

                try:
                    request.result(done=True, path=save_now(self._recorder))
                except Exception as error:  # the training is worth more than this save
                    request.result(done=False, why=f"{type(error).__name__}: {error}")
            else:
                request.result(done=False, why=_UNKNOWN[action])

    def end(self) -> None:
        """The rank ends: what still waits is not done."""
        looks = self._recorder.looks
        left = [*self._waiting, *self._pending.values(), *(setting[0] for setting in self._setting)]
        left += [] if looks is None else [looks.request]
        for request in left:
            request.result(done=False, why=f"the run ended at step {self._recorder.steps}")


def _read(path: str) -> str | None:
    """None where nothing is there yet."""
    with contextlib.suppress(OSError), open(path, encoding="utf-8") as file:
        return file.read(400) or None
    return None


def _write_once(path: str, text: str) -> None:
    """The first writer wins, and no one ever reads half of it."""
    temporary = f"{path}.{os.getpid()}.tmp"
    with contextlib.suppress(OSError):
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return
        except OSError:  # a file system without hard links
            with open(path, "x", encoding="utf-8") as file:
                file.write(text)
        finally:
            os.unlink(temporary)

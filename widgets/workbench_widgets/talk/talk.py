"""``Talk``: prompts to the model that a run has trained, its answer beside its base's."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Any

import traitlets

from workbench.errors import sentence
from workbench.store.layout import RunPaths
from workbench.store.printable import printable
from workbench.trained_model.conversation import (
    BASE,
    TRAINED,
    Conversation,
    Piece,
    Sampling,
    sides_of,
)
from workbench.trained_model.process import ModelProcessError
from workbench.trained_model.source import trained_model
from workbench_widgets.face import Face
from workbench_widgets.fallback_output import store_config
from workbench_widgets.options import refuse_extra
from workbench_widgets.run.face import handle_of

_LEAST_SECONDS = 0.1  # between two updates of the page
_TITLES = {TRAINED: "Trained", BASE: "Base"}


class Talk(Face):
    """A prompt, the base's and the trained answer side by side as they come, and *Stop*.

    Args:
        run: A ``Run`` from ``wb.launch`` or ``wb.attach``, or its name.
        checkpoint: Name or path; default the newest whole one.
        step: The checkpoint of this step, instead of its name.
        base: Folder or hub name of the base model, where the run does not say it.

    The model is in a process of its own, which is started by the first prompt and ends with the
    widget, `close` or the kernel. One that was killed is told; the next prompt starts another.

    Raises:
        TypeError: an unknown option.
        UsageError: there is no checkpoint, or nothing is known that could answer.
    """

    shown = traitlets.Dict().tag(sync=True)
    _talk: Conversation | None = None  # ipywidgets closes what could not be made, too

    def __init__(
        self,
        run: Any,
        *,
        checkpoint: str | None = None,
        step: int | None = None,
        base: str | None = None,
        **unknown: object,
    ) -> None:
        refuse_extra(Talk, unknown)
        self.run = handle_of(run)
        paths = RunPaths(Path(self.run.directory))
        self.model = trained_model(paths, checkpoint, step=step, base=base)
        self._sides = sides_of(self.model)
        self._busy = threading.Lock()
        self._shown_at = 0.0
        step_text = self.model.checkpoint.step
        title = f"{self.model.run}, step {'n/a' if step_text is None else step_text}"
        document = {
            "title": title,
            "state": "idle",
            "says": " ".join(self.model.notes),
            "prompt": "",
            "answers": self._empty(),
            "settings": {name: getattr(Sampling(), name) for name in Sampling.__dataclass_fields__},
        }
        super().__init__(store_config(paths.directory.parent, face="talk.js"), shown=document)

    def ask(self, prompt: str, /, **sampling: Any) -> None:
        """Answer in the background; nothing happens while an answer is under way.

        `sampling` are fields of `Sampling`: max_tokens, temperature, top_k, seed, raw.
        """
        if not self._busy.acquire(blocking=False):
            return
        try:
            how = Sampling(**sampling)
        except (TypeError, ValueError) as error:
            self._busy.release()
            self.shown = {**self.shown, "state": "failed", "says": sentence(error)}
            return
        self.shown = {
            **self.shown,
            "state": "running",
            "says": "",
            "prompt": prompt,
            "answers": self._empty(),
            "settings": {**self.shown["settings"], **sampling},
        }
        threading.Thread(
            target=self._answer, args=(prompt, how), name="workbench-talk", daemon=True
        ).start()

    def stop(self) -> None:
        """End the answer that is under way; the model stays loaded."""
        if self._talk is not None and self._busy.locked():
            self._talk.stop()

    def _answer(self, prompt: str, how: Sampling) -> None:
        answers, last = self._empty(), {"state": "idle", "says": ""}
        try:
            if self._talk is None or not self._talk.running:
                self._end_model()
                self._talk = Conversation(self.model)
            for piece in self._talk.ask(prompt, how):
                self._add(answers, piece)
        except ModelProcessError as error:
            last = {
                "state": "failed",
                "says": f"{sentence(error)} The next prompt starts it again.",
            }
            self._end_model()
        except Exception as error:  # noqa: BLE001 - whatever it is, the page has to say it
            last = {"state": "failed", "says": sentence(error)}
        finally:
            self._busy.release()
        if self.comm is not None:
            self.shown = {**self.shown, **last, "answers": answers}

    def _add(self, answers: list[dict[str, Any]], piece: Piece) -> None:
        """One more piece; the page gets it a few times a second."""
        for number, answer in enumerate(answers):
            if answer["side"] == piece.side:
                answers[number] = {
                    **answer,
                    "text": answer["text"] + printable(piece.text, max_line=None),
                    "says": _rate(piece),
                }
        now = time.monotonic()
        if self.comm is not None and (not piece.side or now - self._shown_at >= _LEAST_SECONDS):
            self._shown_at = now
            says = "" if piece.side else f"{piece.text} …"
            self.shown = {**self.shown, "says": says, "answers": list(answers)}

    def _empty(self) -> list[dict[str, Any]]:
        return [
            {"side": side, "title": _TITLES[side], "text": "", "says": ""} for side in self._sides
        ]

    def _receive(self, kind: str, message: dict[str, Any]) -> None:
        prompt, settings = message.get("prompt"), message.get("settings")
        if kind == "stop":
            self.stop()
        elif kind == "ask" and isinstance(prompt, str) and isinstance(settings, dict):
            self.ask(prompt, **settings)

    def _end_model(self) -> None:
        if self._talk is not None:
            with contextlib.suppress(OSError):
                self._talk.close()
            self._talk = None

    def close(self) -> None:
        """End the widget and the model's process."""
        self._end_model()
        super().close()

    def __repr__(self) -> str:
        document = self.shown
        lines = [
            f"Talk to {document['title']}",
            f"> {document['prompt']}" if document["prompt"] else "",
        ]
        lines += [
            f"{answer['title']}: {answer['text']}"
            for answer in document["answers"]
            if answer["text"]
        ]
        return os.linesep.join(line for line in [*lines, document["says"]] if line)


def _rate(piece: Piece) -> str:
    """How long an answer was, at its end."""
    if piece.tokens is None:
        return ""
    rate = f", {piece.tokens / piece.seconds:.1f} tokens/s" if piece.seconds else ""
    more = f"; {piece.note}" if piece.note else ""
    return f"{piece.tokens} tokens{rate}{', stopped' if piece.stopped else ''}{more}"

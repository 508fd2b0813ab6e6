"""What a page may do with a run: stop, resume, watch again, profile, steer. Each says how it went.

The run itself refuses what is not its user's (`workbench.store.ownership`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workbench.compare.profile import tracing
from workbench.errors import UsageError, WorkbenchError, sentence
from workbench.launching.steering import Answer

Message = dict[str, Any]
ACTIONS = ("stop", "adopt", "resume", "profile", "steer")
_BY = "dashboard"  # who asked, in the run's journal


def stop(run: Any, *, now: bool) -> Message | None:
    """Ask for a stop; None: it was asked for, and the run's view tells the rest."""
    try:
        run.request_stop(now=now)
    except Exception as error:  # noqa: BLE001 - another user's run, a full disk: say it
        return _reply(run, f"Not stopped: {sentence(error)}", bad=True)
    return None


def adopt(run: Any) -> Message:
    """Have a run watched again whose supervisor is gone."""
    try:
        watched = run.adopt()
    except Exception as error:  # noqa: BLE001 - another user's run, a full disk: say it
        return _reply(run, f"Not watched: {sentence(error)}", bad=True)
    return _reply(run, "The run has a supervisor again." if watched else "It is watched already.")


def resume(run: Any, checkpoint: str | None) -> Message:
    """Resume the run from `checkpoint`, or from its newest complete one."""
    try:
        resumed = run.resume(checkpoint=checkpoint)
    except Exception as error:  # noqa: BLE001 - whatever it is, the page has to say it
        return _reply(run, f"Not resumed: {sentence(error)}", bad=True)
    here = resumed.id == run.id
    text = "Resumed." if here else f"Resumed as {resumed.id}; open it in the list of runs."
    return _reply(resumed, text)


def profile(run: Any, send: Callable[[Message], None]) -> None:
    """Trace the next 5 steps, and say what came of it."""
    send({"type": "profiled", "text": "Tracing 5 steps …", "busy": True})
    try:
        traced = tracing.trace(run)
        text = "\n".join([str(traced), *(["Full profile: Profile(run)"] if traced.ranks else [])])
    except (WorkbenchError, OSError) as error:
        text = f"Not profiled: {sentence(error)}"
    send({"type": "profiled", "text": text, "busy": False})


def steer(run: Any, message: Message) -> Message:
    """Ask the training for something after one of its next steps, and wait for what came of it."""
    try:
        answer = _send(run, message)
    except Exception as error:  # noqa: BLE001 - whatever it is, the page has to say it
        return {"type": "steered", "text": sentence(error), "bad": True}
    reply: Message = {"type": "steered", "text": answer.sentence, "bad": answer.done is False}
    looked = answer.action == "look" and answer.done
    return reply | ({"ranks": list(answer.ranks)} if looked else {})


def _send(run: Any, message: Message) -> Answer:
    action = str(message.get("action"))
    if action == "set":
        text = str(message.get("value") or "").strip()
        try:
            rate = float(text)
        except ValueError:
            raise UsageError(f"{text!r} is not a learning rate. Give a number, as 1e-4.") from None
        return run.set(lr=rate, hold=bool(message.get("hold")), by=_BY)
    if action == "look":
        return run.look(str(message.get("module") or "").strip(), by=_BY)
    if action in {"checkpoint", "evaluate"}:
        return run.ask(action, by=_BY)
    raise UsageError(f"A run cannot be asked to {action!r}.")


def _reply(run: Any, text: str, *, bad: bool = False) -> Message:
    return {"bad": bad, "run": run.id, "text": text}

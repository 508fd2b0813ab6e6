"""The options of a script from a run of it up to its parser: in a process with limits."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.script_options.values import Reading, ScriptOption, options_of
from workbench.store.processes import SAFE_PYTHON

SECONDS, MEMORY_BYTES = 60.0, 8 << 30
_ANSWER_BYTES, _PRINTED_BYTES = 4 << 20, 1 << 16
_CHILD = "workbench.script_options.catch_parser"
WHAT_IT_DOES = (
    "This runs the script up to its parser, imports included, without GPUs and without the network "
    f"of the Hugging Face hub, for at most {SECONDS:.0f} s and {MEMORY_BYTES >> 30} GiB."
)
_QUIET = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "WANDB_MODE": "disabled",
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "COLUMNS": "100",
    "NO_COLOR": "1",
    "TERM": "dumb",
}


def read_by_run(
    script: Path,
    *,
    module: str | None = None,
    name: str = "",
    seconds: float = SECONDS,
    memory_bytes: int = MEMORY_BYTES,
) -> Reading:
    """What the script's own parser says when the script is run up to it.

    Args:
        script: Its file.
        module: Its name, where it is started as a module.
        name: What its help calls it.
        seconds: After so long the process is killed, with all that it started.
        memory_bytes: More memory of its own than this is refused to it.
    """
    label = name or script.name
    document, printed, ended = _run(script, module or "", label, seconds, memory_bytes)
    if "options" not in document:
        note = _why_not(script.name, document, ended, seconds, memory_bytes)
        return Reading(note=note, help=printed, can_run=True)
    options = [_option(row) for row in document["options"]]
    page, commands = str(document["help"]), document["commands"]
    declared = options_of(options, any(option.is_word for option in options))
    if commands:
        note = (
            f"{script.name} has sub-commands ({', '.join(commands)}), each with its own options: "
            "type them as text."
        )
        return Reading(known=declared, note=note, help=page)
    note = f"Read from the parser of {script.name}, which was run up to it."
    return Reading(known=declared, way="run", complete=True, note=note, help=page)


def _option(row: Mapping[str, Any]) -> ScriptOption:
    lists = {name: tuple(row[name]) for name in ("names", "off", "choices")}
    values: dict[str, Any] = {**row, **lists}
    return ScriptOption(**values)


def _run(
    script: Path, module: str, name: str, seconds: float, memory_bytes: int
) -> tuple[dict[str, Any], str, int | None]:
    """The child's answer, the beginning of what the script printed, and how it ended."""
    reading, writing = os.pipe()
    words = [*SAFE_PYTHON, "-m", _CHILD, str(writing), str(script), module, name]
    words.append(str(memory_bytes))  # the child limits itself: code after a fork can wait forever
    with contextlib.ExitStack() as closing:
        answer = closing.enter_context(os.fdopen(reading, "rb"))
        try:
            child = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, **_QUIET, "PYTHONPATH": _search_path()},
                pass_fds=(writing,),
                start_new_session=True,
            )
        finally:
            os.close(writing)
        assert child.stdout is not None
        closing.enter_context(child.stdout)
        printed: list[bytes] = []
        heard: list[bytes] = []
        readers = [
            threading.Thread(target=_keep, args=(child.stdout, printed, _PRINTED_BYTES)),
            threading.Thread(target=_keep, args=(answer, heard, _ANSWER_BYTES)),
        ]
        for reader in readers:
            reader.start()
        try:
            ended: int | None = child.wait(seconds)
        except subprocess.TimeoutExpired:
            ended = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # what it has started, too
        child.wait()
        for thread in readers:
            thread.join(5)
    document: dict[str, Any] = {}
    with contextlib.suppress(ValueError):
        document = json.loads(b"".join(heard))
    return document, b"".join(printed).decode("utf-8", "replace"), ended


def _search_path() -> str:
    """This workbench first, so that the child finds it wherever the script lies."""
    own = str(Path(__file__).parents[2])
    return os.pathsep.join(filter(None, (own, os.environ.get("PYTHONPATH", ""))))


def _keep(stream: Any, chunks: list[bytes], limit: int) -> None:
    """Drain a stream, and keep its beginning."""
    size = 0
    for chunk in iter(lambda: stream.read1(1 << 16), b""):
        if size < limit:
            chunks.append(chunk[: limit - size])
            size += len(chunk)


def _why_not(
    name: str, document: Mapping[str, Any], ended: int | None, seconds: float, memory_bytes: int
) -> str:
    """Why a run did not reach a parser, and what is left."""
    code = str(document.get("code", ""))
    reasons = {
        "trains": f"{name} trains before it reads its arguments; it was stopped at the first "
        "backward pass",
        "memory": f"{name} took more than {memory_bytes / (1 << 30):.3g} GiB before it read its "
        "arguments",
        "exits": f"{name} ended (exit code {code}) before it reached a parser that is known here",
        "raises": f"{name} failed before it read its arguments: {code}",
        "ends": f"{name} ended without a parser that is known here",
    }
    reason = reasons.get(str(document.get("problem")))
    if reason is None and ended is None:
        reason = f"{name} did not read its arguments within {seconds:.3g} s"
    reason = reason or f"{name} was ended (exit code {ended}) before it read its arguments"
    return f"{reason.rstrip('.')}. Type its arguments as text."

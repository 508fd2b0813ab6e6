"""A process of its own for a model, from the parent's side: ask, follow, stop; never loads torch.

The child watches its standard input: when the parent is gone, by whatever death, the input ends and
so does the child. It loads torch's files as data alone (``TORCH_FORCE_WEIGHTS_ONLY_LOAD``).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from workbench.describe.child_python import import_path
from workbench.errors import HostError, UsageError, WorkbenchError
from workbench.store.processes import SAFE_PYTHON
from workbench.store.secrets import hide_known

_WORKER = "workbench.trained_model.worker.main"
_TAIL = 600  # characters of the child's stderr in an error message
_OWN = {
    "TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1",  # nothing in a checkpoint runs, whoever reads it
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "DS_ACCELERATOR": "cpu",
}


class ModelProcessError(WorkbenchError):
    """The model's process could not do it; the message is its own, or tells how it ended."""


class ModelProcess:
    """A child that exports a model, uploads it, or lets it answer prompts; a context manager."""

    def __init__(self) -> None:
        environment = {**os.environ, **_OWN, "PYTHONPATH": import_path()}
        environment.pop("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", None)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed in close)
        self._child = subprocess.Popen(
            [*SAFE_PYTHON, "-m", _WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C is the parent's to answer
            env=environment,
            cwd="/",
        )

    @property
    def pid(self) -> int:
        """The child's process id, which is also its process group."""
        return self._child.pid

    @property
    def running(self) -> bool:
        """Whether the child lives."""
        return self._child.poll() is None

    def ask(self, task: str, **request: Any) -> Iterator[dict[str, Any]]:
        """Send a request; its messages, the last of which has the key ``end``.

        Raises:
            UsageError: the child refuses it, with its sentence.
            HostError: a package that it needs is missing.
            ModelProcessError: it failed, or the child died.
        """
        self.send({"task": task, **request})
        return self._messages()

    def stop(self) -> None:
        """Ask it to end the answer that is under way; the model stays loaded."""
        self.send({"task": "stop"})

    def send(self, message: Mapping[str, Any]) -> None:
        """One line for the child; the next reading reports a child that is gone."""
        stream = self._child.stdin
        assert stream is not None
        with contextlib.suppress(OSError, ValueError):
            stream.write(json.dumps(message).encode() + b"\n")
            stream.flush()

    def _messages(self) -> Iterator[dict[str, Any]]:
        stream = self._child.stdout
        assert stream is not None
        kinds = {"usage": UsageError, "host": HostError}
        for line in stream:
            message: dict[str, Any] = json.loads(line)
            if "error" in message:
                raise kinds.get(message.get("kind", ""), ModelProcessError)(message["error"])
            yield message
            if "end" in message:
                return
        code = self._child.wait()
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        hint = " The host may be out of memory." if code == -signal.SIGKILL else ""
        raise ModelProcessError(f"The model's process ended {how}.{hint}{self._last_words()}")

    def _last_words(self) -> str:
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace").strip()
        return f" Last output: {hide_known(text[-_TAIL:])}" if text else ""

    def close(self) -> None:
        """End the child and whatever it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        for stream in (self._child.stdin, self._child.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def __enter__(self) -> ModelProcess:  # noqa: PYI034 - Self is of Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

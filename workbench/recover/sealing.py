"""`Sealer`: the checkpoints of a run at work, and hashes of those that a user's script wrote."""

from __future__ import annotations

import contextlib
import json
import math
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

from workbench.recipes import checkpoint_files
from workbench.recover import contents
from workbench.recover.checkpoints import (
    Checkpoint,
    list_checkpoints,
    manifest_path,
    newest_first,
)
from workbench.recover.script_checkpoints import states_of_script
from workbench.store.layout import RunPaths

_SEARCH_SECONDS = 60.0
"""Least time between two searches for what a script saved where no one saw it."""
_SHARE = 50
"""A search that takes long is repeated after so many times its own time."""


class Sealer:
    """A thread of the supervisor that reads unsealed checkpoints once, one after the other.

    A manifest goes to ``checkpoints/.manifests/``: nothing is written into the script's folders. A
    checkpoint that the script changes or deletes while it is read is left unsealed.

    With `searches` it looks now and then, too, for what the script saved by `torch.save` and its
    like, unseen by the hook: at most every `search_seconds`.
    """

    def __init__(
        self,
        paths: RunPaths,
        say: Callable[[str], None],
        *,
        searches: bool = False,
        search_seconds: float = _SEARCH_SECONDS,
    ) -> None:
        self._paths = paths
        self._say = say
        self._waiting: queue.SimpleQueue[Checkpoint | None] = queue.SimpleQueue()
        self._seen = set[tuple[Path, float | None]]()
        self._by_script = list[Checkpoint]()
        self._least_seconds = search_seconds if searches else math.inf
        self._search_at = time.monotonic() + self._least_seconds
        self._thread = threading.Thread(target=self._work, name="sealer", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def look(self) -> list[Checkpoint]:
        """List the run's checkpoints, newest first; hand over those that no one sealed yet.

        What the script saved unseen is among them as it was at the latest search.
        """
        checkpoints = list_checkpoints(self._paths)
        for checkpoint in checkpoints:
            key = (checkpoint.path, checkpoint.saved_at)
            if not checkpoint.sealed and key not in self._seen:
                self._seen.add(key)
                self._waiting.put(checkpoint)
        listed = {checkpoint.path for checkpoint in checkpoints}
        unseen = [saved for saved in self._by_script if saved.path not in listed]
        return newest_first([*checkpoints, *unseen])

    def stop(self, wait_seconds: float = 30.0) -> None:
        """Let it finish what waits, for so long at most."""
        self._waiting.put(None)
        if self._thread.ident is not None:
            self._thread.join(wait_seconds)

    def _work(self) -> None:
        while (checkpoint := self._next()) is not None:
            try:
                self._seal(checkpoint)
            except OSError as error:
                with contextlib.suppress(Exception):
                    self._say(f"checkpoint {checkpoint.name} was not sealed: {error}")

    def _next(self) -> Checkpoint | None:
        """What is to be sealed next; None = it was stopped. Searches whenever that is due."""
        while True:
            if time.monotonic() >= self._search_at:
                self._search()
            wait = min(_SEARCH_SECONDS, max(0.0, self._search_at - time.monotonic()))
            with contextlib.suppress(queue.Empty):
                return self._waiting.get(timeout=wait)

    def _search(self) -> None:
        """Look for states that the script saved its own way; without torn or doubtful ones."""
        begun = time.monotonic()
        try:
            states = states_of_script(self._paths)
            self._by_script = [saved for saved in states if not (saved.doubt or saved.problem)]
        except Exception as error:  # noqa: BLE001 - it goes on sealing
            with contextlib.suppress(Exception):
                self._say(f"checkpoints of the script were not looked for: {error}")
        now = time.monotonic()
        self._search_at = now + max(self._least_seconds, _SHARE * (now - begun))

    def _seal(self, checkpoint: Checkpoint) -> None:
        if not checkpoint.path.is_dir():
            return  # its script keeps only the latest ones
        before = contents.measure(checkpoint.path)
        files = checkpoint_files.inventory(checkpoint.path)
        manifest = {
            "schema": checkpoint_files.SCHEMA,
            "step": checkpoint.step,
            "saved_at": checkpoint.saved_at or time.time(),
            "kind": checkpoint.kind,
            "world_size": checkpoint.world_size,
            "strategy": None,
            "loss": None,
            **files,
        }
        if contents.measure(checkpoint.path) != before:
            return  # it changed meanwhile
        self._paths.manifests.mkdir(parents=True, exist_ok=True)
        place = manifest_path(self._paths, checkpoint.path)
        checkpoint_files.write_synced(place, json.dumps(manifest))

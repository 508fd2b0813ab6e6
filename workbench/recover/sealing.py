"""`Sealer`: keeps sizes and hashes of checkpoints that a user's script wrote its own way."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

from workbench.recipes import checkpoint_files
from workbench.recover import contents
from workbench.recover.checkpoints import Checkpoint, list_checkpoints, manifest_path
from workbench.store.layout import RunPaths


class Sealer:
    """A thread of the supervisor that reads unsealed checkpoints once, one after the other.

    A manifest goes to ``checkpoints/.manifests/``: nothing is written into the script's folders. A
    checkpoint that the script changes or deletes while it is read is left unsealed.
    """

    def __init__(self, paths: RunPaths, say: Callable[[str], None]) -> None:
        self._paths = paths
        self._say = say
        self._waiting: queue.SimpleQueue[Checkpoint | None] = queue.SimpleQueue()
        self._seen = set[tuple[Path, float | None]]()
        self._thread = threading.Thread(target=self._work, name="sealer", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def look(self) -> list[Checkpoint]:
        """List the run's checkpoints, newest first; hand over those that no one sealed yet."""
        checkpoints = list_checkpoints(self._paths)
        for checkpoint in checkpoints:
            key = (checkpoint.path, checkpoint.saved_at)
            if not checkpoint.sealed and key not in self._seen:
                self._seen.add(key)
                self._waiting.put(checkpoint)
        return checkpoints

    def stop(self, wait_seconds: float = 30.0) -> None:
        """Let it finish what waits, for so long at most."""
        self._waiting.put(None)
        if self._thread.ident is not None:
            self._thread.join(wait_seconds)

    def _work(self) -> None:
        while (checkpoint := self._waiting.get()) is not None:
            try:
                self._seal(checkpoint)
            except OSError as error:
                with contextlib.suppress(Exception):
                    self._say(f"checkpoint {checkpoint.name} was not sealed: {error}")

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

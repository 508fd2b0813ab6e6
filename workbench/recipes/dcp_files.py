"""The files of torch.distributed.checkpoint: emptied first, committed last, read without pickles.

A failure on one rank is known to all when a save or a load ends, so they can go on together.
"""

# pyright: reportMissingTypeStubs=false, reportPrivateImportUsage=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import contextlib
import enum
import json
import pickle
import shutil
import sys
import warnings
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from checkpoint_files import write_synced
from recipe_options import RECORD
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

Commit = Callable[[], object]  # makes a complete folder visible; one rank calls it


# One process alone is no mistake here.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable")


class CheckpointError(OSError):
    """A checkpoint could not be written or read; all ranks raise it, so a training can continue."""


@contextlib.contextmanager
def one_error() -> Generator[None]:
    """Torch reports a failure on all ranks at once; its first cause, as a CheckpointError."""
    try:
        yield
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items(), key=lambda failure: failure[0])
        text = str(cause)
        if "inline_container" in text:  # torch's archive writer keeps the system's words to itself
            text = "the disk is full, or files may not grow so large"
        raise CheckpointError(f"{text} (rank {rank})") from cause
    except (OSError, RuntimeError, pickle.UnpicklingError) as error:
        raise CheckpointError(str(error)) from error


class Writer(dcp.FileSystemWriter):
    """Begins with an empty folder and commits it inside the save, so that all ranks learn of both.

    What fails here fails on the first rank and is told to the others by the save itself.
    """

    def __init__(self, folder: Path, record: dict[str, Any], commit: Commit | None) -> None:
        # Without copies ahead: in the thread of an asynchronous save they ask for a stream of GPU 0
        # on every rank, though all tensors are on the CPU by then.
        super().__init__(folder, per_thread_copy_ahead=0)
        self._folder, self._record, self._commit = folder, record, commit

    def prepare_global_plan(self, plans: list[dcp.SavePlan]) -> list[dcp.SavePlan]:
        """Called by the first rank before any rank writes: leftovers of a dead process go."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        return super().prepare_global_plan(plans)

    def finish(self, metadata: Metadata, results: Any) -> None:
        """Called by the first rank when all have written."""
        super().finish(metadata, results)
        write_synced(self._folder / RECORD, json.dumps(self._record))
        if self._commit:
            self._commit()


class Reader(dcp.FileSystemReader):
    """Reads the table of contents without running code: it is a pickle, of unknown origin."""

    def read_metadata(self, *_args: Any, **_options: Any) -> Metadata:
        """Only plain containers and torch's own descriptions."""
        with Path(self.path, ".metadata").open("rb") as file:
            metadata = _Unpickler(file).load()
        if not isinstance(metadata, Metadata):
            raise pickle.UnpicklingError(f"{self.path} does not have a table of contents")
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


_ALLOWED = {
    "torch.distributed.checkpoint.metadata",
    "torch.distributed.checkpoint.filesystem",
}
_ALLOWED_NAMES = {
    *(("torch", name) for name in ("Size", "device")),
    ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"),
    *(("pathlib", name) for name in ("PosixPath", "Path", "PurePosixPath")),
    *(("pathlib._local", name) for name in ("PosixPath", "Path", "PurePosixPath")),
}


def _member(kind: Any, name: Any) -> Any:
    """The member of an enumeration of torch's; Python 3.11.0 to 3.11.3 pickle it as a getattr."""
    if isinstance(kind, enum.EnumMeta) and kind.__module__ in _ALLOWED and name in kind.__members__:
        return kind.__members__[name]
    raise pickle.UnpicklingError(f"a checkpoint's table of contents asks for {name} of {kind}")


class _Unpickler(pickle.Unpickler):
    """Refuses every class that a table of contents does not need."""

    def find_class(self, module: str, name: str, /) -> Any:
        """The class, or an error."""
        if (module, name) == ("builtins", "getattr"):
            return _member
        is_allowed = module in _ALLOWED and "." not in name
        if is_allowed:
            is_allowed = getattr(getattr(sys.modules[module], name), "__module__", "") in _ALLOWED
        dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_allowed or dtype or (module, name) in _ALLOWED_NAMES:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"a checkpoint's table of contents names {module}.{name}")

"""``export_model``: the model that a run has trained, in a folder that stands by itself."""

from __future__ import annotations

import contextlib
import errno
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workbench.errors import StoreError, UsageError
from workbench.store.layout import RunPaths
from workbench.trained_model.card import card
from workbench.trained_model.exported import ExportedModel, ModelExport, read_receipt, write_receipt
from workbench.trained_model.process import ModelProcess
from workbench.trained_model.source import IMAGE_LORA, TrainedModel, trained_model

OnProgress = Callable[[float, str], None]
_GB = 1_000_000_000


def export_model(
    paths: RunPaths, export: ModelExport | None = None, *, on_progress: OnProgress | None = None
) -> ExportedModel:
    """Write the model of a run to a new folder, complete or not at all.

    Raises:
        UsageError: there is no such checkpoint, its form is not known, or the folder exists.
        HostError: the disk is full, memory is short, or a package is missing.
        StoreError: the folder cannot be written.
        ModelProcessError: the process that does it failed.
    """
    export = export or ModelExport()
    model, target = _model_and_target(paths, export)
    with _partial(target) as partial:
        answer = _in_process(
            {
                **model.request(),
                "partial": str(partial),
                "adapter_only": export.adapter,
                "dtype": export.dtype,
                "shard_bytes": int(export.shard_gb * _GB),
            },
            on_progress,
        )
        facts = answer["facts"]
        exported = ExportedModel(
            run=model.run,
            checkpoint=model.checkpoint.name,
            step=model.checkpoint.step,
            path=target,
            family=model.family,
            architecture=facts.get("architecture"),
            parameters=facts["parameters"],
            tensors=facts["tensors"],
            bytes=facts["bytes"],
            dtype=facts["dtype"],
            fingerprint=facts["fingerprint"],
            merged=model.adapter and not export.adapter and model.family != IMAGE_LORA,
            logits_difference=facts["logits_difference"],
            loads=facts["loads"],
            notes=(*model.notes, *answer["notes"]),
        )
        text = card(paths, model, exported)
        (partial / "README.md").write_text(text, encoding="utf-8")
        write_receipt(partial, exported, export, model.checkpoint)
    return exported


def exported_model(
    paths: RunPaths, export: ModelExport | None = None, *, on_progress: OnProgress | None = None
) -> ExportedModel:
    """The folder that holds this export already, as it is; else `export_model`.

    Raises:
        WorkbenchError: as `export_model`.
    """
    export = export or ModelExport()
    model, target = _model_and_target(paths, export)
    receipt = read_receipt(target, export, model.checkpoint)
    if receipt is not None and receipt.run == model.run:
        return receipt
    return export_model(paths, export, on_progress=on_progress)


def _model_and_target(paths: RunPaths, export: ModelExport) -> tuple[TrainedModel, Path]:
    """Which model is written, and where."""
    model = trained_model(paths, export.checkpoint, step=export.step, base=export.base)
    if export.adapter and not model.adapter:
        raise UsageError(
            f"All weights of {model.run} were trained, so there is no adapter: leave --adapter out."
        )
    step = "" if model.checkpoint.step is None else f"-step-{model.checkpoint.step}"
    return model, Path(export.to or f"{paths.directory.name}{step}").expanduser().absolute()


def _in_process(request: dict[str, Any], on_progress: OnProgress | None) -> dict[str, Any]:
    """What the child says at its end; Ctrl-C ends it too."""
    last: dict[str, Any] = {}
    with ModelProcess() as process:
        for last in process.ask("export", **request):
            if on_progress is not None and "progress" in last:
                on_progress(last["progress"], last["text"])
    return last


class _partial(contextlib.AbstractContextManager[Path]):  # noqa: N801 - used as a function
    """A folder beside `target` that gets its name when all went well, and goes when not."""

    def __init__(self, target: Path) -> None:
        if target.exists() or target.is_symlink():
            raise UsageError(f"{target} exists: name a new folder with --to, or remove it first.")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            made = tempfile.mkdtemp(prefix=f".{target.name[:100]}-partial-", dir=target.parent)
        except OSError as error:
            raise StoreError(
                f"{target.parent} cannot be written: {error.strerror}. Name another with --to."
            ) from error
        self._target, self._folder = target, Path(made)

    def __enter__(self) -> Path:
        return self._folder

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._folder.chmod(0o755)
                self._folder.rename(self._target)  # refused where something has got the name since
        except OSError as error:
            is_taken = error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}
            why = "it exists now" if is_taken else error.strerror
            raise StoreError(f"{self._target} was not written: {why}.") from error
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

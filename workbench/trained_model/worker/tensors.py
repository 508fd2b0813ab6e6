"""The weights in a checkpoint, whoever wrote it: names and shapes first, tensors a few at a time.

Nothing is unpickled but tensors: tables by `dcp_files.Reader`, torch's files with ``weights_only``
(which the process enforces, see `process`), DeepSpeed's with its own records allowed by name.
"""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportPrivateImportUsage=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import abc
import contextlib
import json
import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError, safe_open
from torch import Tensor

from workbench.errors import UsageError, pip_install
from workbench.recover.foreign import identify
from workbench.trained_model.worker.recipe_files import recipe_module

_TORCH = (".pt", ".pth", ".ckpt", ".bin", ".tar")
# Where a script keeps the weights in what it saves; the first one that holds tensors is taken.
_INSIDE = ("model", "state_dict", "model_state_dict", "module", "weights", "net")
_MOMENTS = (".exp_avg", ".exp_avg_sq", ".step")


class Tensors(abc.ABC):
    """Weights by name; nothing of them is in memory but what `read` returns."""

    shapes: Mapping[str, tuple[int, ...]]
    """Shape of each weight."""
    dtypes: Mapping[str, torch.dtype]
    """Type of each weight."""

    @abc.abstractmethod
    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        """These weights, whole, on the CPU."""

    def bytes(self, name: str, dtype: torch.dtype | None = None) -> int:
        """Size of one weight, as stored or in `dtype` where it is a fraction."""
        own = self.dtypes[name]
        kind = dtype if dtype is not None and own.is_floating_point else own
        return torch.Size(self.shapes[name]).numel() * kind.itemsize


class SafetensorsFiles(Tensors):
    """One or several files of safetensors."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._where: dict[str, Path] = {}
        shapes, dtypes = dict[str, tuple[int, ...]](), dict[str, torch.dtype]()
        for file in files:
            with _safetensors(file) as opened:
                for name in opened.keys():  # noqa: SIM118 - it is no mapping
                    part = opened.get_slice(name)
                    self._where[name] = file
                    shapes[name] = tuple(part.get_shape())
                    dtypes[name] = _DTYPES[part.get_dtype()]
        self.shapes, self.dtypes = shapes, dtypes

    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        """File by file."""
        tensors = dict[str, Tensor]()
        for name in names:
            with _safetensors(self._where[name]) as opened:
                tensors[name] = opened.get_tensor(name)
        return tensors


class SavedTensors(Tensors):
    """What `torch.save` wrote, or any other tensors; files are mapped, not read at once."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self.shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        self.dtypes = {name: tensor.dtype for name, tensor in tensors.items()}

    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        """As they lie in memory or in mapped files; tied weights share theirs."""
        return {name: self._tensors[name].detach().contiguous() for name in names}


class DistributedCheckpoint(Tensors):
    """A folder of torch.distributed.checkpoint; optimizer states in it are left out."""

    def __init__(self, folder: Path, selected: Iterable[str] | None = None) -> None:
        self._reader = recipe_module("dcp_files").Reader(folder)
        try:
            described = self._reader.read_metadata().state_dict_metadata
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise UsageError(f"{folder.name}/.metadata cannot be read: {error}") from error
        parts = {name: value for name, value in described.items() if hasattr(value, "chunks")}
        names = set(parts) if selected is None else set(selected) & set(parts)
        if selected is None:
            names = {name for name in parts if not _of_optimizer(name, parts)}
        self.shapes = {name: tuple(parts[name].size) for name in sorted(names)}
        self.dtypes = {name: parts[name].properties.dtype for name in sorted(names)}

    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Each rank's parts put together."""
        state = {
            name: torch.empty(self.shapes[name], dtype=self.dtypes[name]) for name in set(names)
        }
        if state:
            dcp.load(state, storage_reader=self._reader, no_dist=True)
        return state


class GatheredZero(Tensors):
    """The fp32 weights of DeepSpeed's ZeRO 1 to 3, put together by DeepSpeed's own functions."""

    def __init__(self, folder: Path) -> None:
        try:
            from deepspeed.utils import zero_to_fp32  # noqa: PLC0415 - only for its checkpoints
        except ImportError as error:
            raise UsageError(
                f"DeepSpeed's shards are put together by DeepSpeed: {pip_install('deepspeed')}"
            ) from error
        torch.serialization.add_safe_globals(_deepspeed_records())
        above, tag = folder.parent, folder.name
        self._lazy: Any = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(
            str(above), tag, lazy_mode=True
        )
        self.shapes = {name: tuple(value.shape) for name, value in self._lazy.items()}
        self.dtypes = {name: value.dtype for name, value in self._lazy.items()}

    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        """One weight after the other."""
        return {name: self._lazy[name].contiguous().clone() for name in names}


def open_tensors(place: Path) -> Tensors:
    """The weights of the checkpoint at `place`.

    Raises:
        UsageError: it holds none that are known how to read; the message says what it is.
    """
    if place.is_file():
        return _file(place)
    names = {path.name for path in place.iterdir()}
    if ".metadata" in names:
        return DistributedCheckpoint(place, _recorded(place))
    if sharded := sorted(name for name in names if name.startswith("pytorch_model_fsdp_")):
        return DistributedCheckpoint(place / sharded[0])
    for above in (place, place / "pytorch_model"):
        if (above / "latest").is_file():
            return _deepspeed(above / _tag(above))
    tagged = any(name.endswith("_model_states.pt") for name in names)
    return _deepspeed(place) if tagged else _whole_files(place, names)


def _tag(folder: Path) -> str:
    """The folder that DeepSpeed's file ``latest`` names."""
    tag = (folder / "latest").read_text(encoding="utf-8")[:200].strip()
    if Path(tag).name != tag or not (folder / tag).is_dir():
        raise UsageError(f"{folder.name}/latest names {tag!r}, which is not there.")
    return tag


def _whole_files(place: Path, names: set[str]) -> Tensors:
    """Weights that were saved whole; those of safetensors first."""
    safetensors = sorted(name for name in names if name.endswith(".safetensors"))
    own = [name for name in safetensors if name.startswith("model")] or safetensors
    if own:
        return SafetensorsFiles(place / name for name in own)
    parts = sorted(
        name for name in names if name.startswith("pytorch_model") and name.endswith(".bin")
    )
    if parts:
        files = [_file(place / part) for part in parts]
        return SavedTensors(
            {name: tensors.read([name])[name] for tensors in files for name in tensors.shapes}
        )
    saved = sorted(name for name in names if name.endswith(_TORCH))
    models = [name for name in saved if "model" in name or "weights" in name]
    files = [place / name for name in models or [name for name in saved if "optim" not in name]]
    for file in sorted(files, key=_step_of, reverse=True):
        with contextlib.suppress(UsageError):
            return _file(file)
    for file in files:
        _file(file)  # raises why it cannot be taken
    raise UsageError(
        f"{place.name} does not hold weights in a known form: expected are safetensors, "
        "torch.distributed.checkpoint (.metadata), DeepSpeed (latest) or a file of torch.save."
    )


def _step_of(file: Path) -> int:
    """Steps done when it was written: of best.pt and last.pt the folder's step is the latter's."""
    about = identify(file)
    return -1 if about is None or about.step is None else about.step


def _file(path: Path) -> Tensors:
    """One file, of safetensors or torch.save."""
    if path.suffix == ".safetensors":
        return SafetensorsFiles([path])
    try:
        saved: Any = torch.load(path, map_location="cpu", mmap=_is_zip(path), weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise UsageError(
            f"{path.name} holds more than tensors, or is damaged, and is not unpickled. Save the "
            "weights alone in the script: torch.save(model.state_dict(), FILE)."
        ) from error
    tensors = _weights(saved)
    if not tensors:
        raise UsageError(
            f"{path.name} does not hold weights by name; expected is a state_dict, or one under "
            f"{', '.join(map(repr, _INSIDE))}."
        )
    return SavedTensors(tensors)


def _weights(saved: Any) -> dict[str, Tensor]:
    if not isinstance(saved, Mapping):
        return {}
    for key in _INSIDE:
        if isinstance(inner := saved.get(key), Mapping) and (weights := _weights(inner)):
            return weights
    tensors = {str(name): value for name, value in saved.items() if isinstance(value, Tensor)}
    return tensors if len(tensors) * 2 > len(saved) else {}


def _is_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PK\3\4"


def _deepspeed(folder: Path) -> Tensors:
    """One tag's folder."""
    states = sorted(folder.glob("*_model_states.pt"))
    if any(state.name.startswith("layer_") for state in states) or any(
        "mp_rank_00" not in state.name for state in states
    ):
        raise UsageError(
            f"{folder.name} is split by DeepSpeed's own pipeline or by tensor parallelism, whose "
            "parts only the script can put together. Recipes gpt with --pp or --tp can be exported."
        )
    if any(folder.glob("*_optim_states.pt")):
        return GatheredZero(folder)
    if not states:
        raise UsageError(f"{folder.name} does not hold DeepSpeed's model states.")
    torch.serialization.add_safe_globals(_deepspeed_records())
    return _file(states[0])


def _deepspeed_records() -> list[Any]:
    """Classes that DeepSpeed's files name beside tensors; each only keeps values."""
    from deepspeed.runtime.fp16 import loss_scaler  # noqa: PLC0415 - loaded already
    from deepspeed.runtime.zero.config import ZeroStageEnum  # noqa: PLC0415
    from deepspeed.utils.tensor_fragment import fragment_address  # noqa: PLC0415

    scalers = (loss_scaler.LossScaler, loss_scaler.DynamicLossScaler)
    return [ZeroStageEnum, fragment_address, *scalers]


def _recorded(folder: Path) -> list[str] | None:
    """The weights that a recipe's checkpoint names; None: it is someone else's."""
    try:
        record: Any = json.loads((folder / "options.json").read_bytes())
        return list(record["weights"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _of_optimizer(name: str, names: Mapping[str, Any]) -> bool:
    """Whether it is an optimizer's state or a counter, by its name."""
    first = name.split(".", maxsplit=1)[0]
    if any(
        first.startswith(prefix) for prefix in ("optim", "random", "scaler", "train_state", "sched")
    ):
        return True
    return any(name.endswith(moment) and name.removesuffix(moment) in names for moment in _MOMENTS)


def _safetensors(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{path.name} cannot be read: {error}") from error


_DTYPES = {
    name: dtype
    for dtype, name in (
        *((torch.float64, "F64"), (torch.float32, "F32"), (torch.float16, "F16")),
        *((torch.bfloat16, "BF16"), (torch.int64, "I64"), (torch.int32, "I32")),
        *((torch.int16, "I16"), (torch.int8, "I8"), (torch.uint8, "U8"), (torch.bool, "BOOL")),
        *((torch.float8_e4m3fn, "F8_E4M3"), (torch.float8_e5m2, "F8_E5M2")),
    )
}

"""One format of checkpoint for every layout: by the name of a weight and the place in it.

torch.distributed.checkpoint knows which part of a weight each rank holds (DTensor), lets every rank
write its part once, and reads back whichever parts another layout needs. So a run continues under
another strategy or on another number of processes. An optimizer's own state_dict, which numbers the
weights rank by rank, does not allow that.
"""

# Accelerate has no type stubs, so whatever it returns is unknown to a strict checker.
# pyright: reportMissingTypeStubs=false, reportPrivateImportUsage=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from accelerate import Accelerator
from accelerate.utils import gather_object
from dcp_files import Commit, Reader, Writer, one_error
from torch import Tensor
from torch.distributed.tensor import DTensor
from training_state import TrainingState


class Portable:
    """Weights, AdamW's moments, random states and the loss scale, saved by name.

    `record` is kept beside them, to be compared when a run resumes; `shapes` too: the weights of
    the full model as they were before it was wrapped or split. What is saved is held against
    them, here and when a checkpoint is verified. Errors are CheckpointErrors.
    """

    format = "portable"

    def __init__(
        self,
        accelerator: Accelerator,
        training: TrainingState,
        shapes: Mapping[str, Sequence[int]],
        record: dict[str, Any],
    ) -> None:
        self.accelerator, self.training = accelerator, training
        if unknown := training.names - set(shapes):
            raise AssertionError(f"the model does not have the weight {min(unknown)}")
        weights = {name: list(shape) for name, shape in shapes.items()}
        self.record = {"format": self.format, **record, "weights": weights}
        self._group: Any = None  # of its own when it saves beside training

    def save(self, folder: Path, commit: Commit | None = None) -> None:
        """Empty `folder`, write it, let one rank `commit` it; all ranks or none raise an error."""
        with one_error():
            dcp.save(self._state(), storage_writer=Writer(folder, self.record, commit))

    def save_async(self, folder: Path, commit: Commit | None = None) -> Callable[..., bool]:
        """Copy the state, then write it while the training continues.

        Returns:
            What waits for the end and raises as `save` does; with wait=False it only tells whether
            the end has come.
        """
        if self._group is None and dist.is_initialized():
            self._group = dist.new_group(backend="gloo")  # training's own group is busy
        with one_error():
            # The stager moves what is on a GPU; what is on the CPU already it would only lend.
            state = {
                name: value.detach().clone() if value.device.type == "cpu" else value.detach()
                for name, value in self._state().items()
            }
            writer = Writer(folder, self.record, commit)
            future: Any = dcp.async_save(state, storage_writer=writer, process_group=self._group)

        def written(*, wait: bool = True) -> bool:
            if wait or future.done():
                with one_error():
                    future.result()
            return future.done()

        return written

    def load(self, folder: Path) -> None:
        """Continue from what `save` wrote, in this or another layout."""
        reader = Reader(folder)
        with one_error():
            there = reader.read_metadata().state_dict_metadata
        # The whole model's, so that every rank sees the same and none waits for another.
        if missing := set(self.record["weights"]) - set(there):
            raise SystemExit(f"{folder} lacks {min(missing)}: it belongs to another model.")
        # Random states are a rank's own: other ranks than those that saved begin with fresh ones.
        own = {name: value for name, value in self._own_state().items() if name in there}
        with one_error():
            self.training.load(lambda tensors: dcp.load(dict(tensors), storage_reader=reader))
            dcp.load(own, storage_reader=reader)
        self._restore(own)

    def _restore(self, state: dict[str, Tensor]) -> None:
        """What was loaded into copies goes back to where it came from."""
        rank, ranks = self.accelerator.process_index, self.accelerator.num_processes
        if f"random.{rank}.of.{ranks}" in state:
            torch.set_rng_state(state[f"random.{rank}.of.{ranks}"])
        if f"random.cuda.{rank}.of.{ranks}" in state:
            torch.cuda.set_rng_state(state[f"random.cuda.{rank}.of.{ranks}"])
        scaler: Any = self.accelerator.scaler
        if scaler is not None and "scaler" in state:
            scale, tracker = state["scaler"].tolist()
            about = {"scale": scale, "_growth_tracker": int(tracker)}
            scaler.load_state_dict({**scaler.state_dict(), **about})

    def _own_state(self) -> dict[str, Tensor]:
        """What belongs to no weight: this rank's random states, the loss scale."""
        own = f"{self.accelerator.process_index}.of.{self.accelerator.num_processes}"
        state = {f"random.{own}": torch.get_rng_state()}
        if self.accelerator.device.type == "cuda":
            state[f"random.cuda.{own}"] = torch.cuda.get_rng_state()
        scaler: Any = self.accelerator.scaler
        if scaler is not None:
            about = scaler.state_dict()
            values = [about.get("scale", 1.0), about.get("_growth_tracker", 0)]
            state["scaler"] = torch.tensor(values, dtype=torch.float64)
        return state

    def _state(self) -> dict[str, Tensor]:
        return self.training.tensors() | self._own_state()

    def fingerprint(self) -> str:
        """SHA-256 over all weights by name: equal in every layout when the weights are."""
        return fingerprint(self.training.weights())


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """SHA-256 over the weights of all ranks by name; every rank calls this."""
    digests = list[tuple[str, str]]()
    for name in sorted(weights):
        weight = weights[name].detach()
        full = weight.full_tensor() if isinstance(weight, DTensor) else weight
        numbers = full.cpu().contiguous().flatten().view(torch.uint8).numpy()
        digests.append((name, hashlib.sha256(numbers.tobytes()).hexdigest()))
    of_all = sorted(set(gather_object(digests)))
    return hashlib.sha256(
        "\n".join(f"{name} {digest}" for name, digest in of_all).encode()
    ).hexdigest()

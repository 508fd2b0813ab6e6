"""What `reader.ScalarReader` is for torch, where every value is a number already."""

from __future__ import annotations

from typing import Any


class Numbers:
    """Reads numbers: of Keras, and of scripts that tell their loss."""

    def scalar(self, value: Any) -> Any:
        """The number itself; None for anything else."""
        return float(value) if isinstance(value, (int, float)) else None

    def waits_for(self, losses: list[Any], norm: Any) -> bool:
        """Whether values have to be waited for: never."""
        del losses, norm
        return False

    def add(self, line: dict[str, Any], losses: list[Any], norm: Any) -> list[dict[str, Any]]:
        """The line with the loss."""
        if losses:
            line["loss"] = sum(losses)
        if norm is not None:
            line["grad_norm"] = norm
        return [line]

    def drain(self) -> list[dict[str, Any]]:
        """Nothing ever waits."""
        return []

    def device_memory(self) -> int | None:
        """TensorFlow and JAX reserve whole GPUs, so nothing is known of what they use."""
        return None

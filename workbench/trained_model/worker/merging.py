"""An adapter merged into its base, and what the model says compared before and after."""

# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from workbench.errors import WorkbenchError

TOLERANCE = 1e-5
"""Largest difference of an output after a merge, over the largest value of it (at least 1)."""


def merge(model: Any) -> tuple[Any, float | None]:
    """The base with the adapter in its weights, and the largest difference of the outputs.

    None = not compared: what the model takes is neither text nor a picture.

    Raises:
        WorkbenchError: the outputs are not those of base and adapter.
    """
    inputs = _inputs(model)
    with torch.no_grad():
        before = _outputs(model, inputs)
        merged = model.merge_and_unload(safe_merge=True)
        after = _outputs(merged, inputs)
    largest = None
    for old, new in zip(before, after, strict=True):
        difference = (old - new).abs().max().item()
        if not difference <= TOLERANCE * max(1.0, old.abs().max().item()):
            raise WorkbenchError(
                f"The merged model's logits differ by {difference:.1e} from those of base and "
                "adapter: nothing was written. Export the adapter alone with --adapter."
            )
        largest = max(largest or 0.0, difference)
    return merged, largest


def _inputs(model: Any) -> list[dict[str, Tensor]]:
    """Two fixed inputs, one at a time: a classifier without a padding token takes no more."""
    config, kind = model.config, getattr(model.get_base_model(), "main_input_name", "input_ids")
    if kind == "pixel_values":
        sides = (
            config.image_size if isinstance(config.image_size, list) else [config.image_size] * 2
        )
        pixels = torch.linspace(-1, 1, config.num_channels * sides[0] * sides[1])
        return [{kind: pixels.reshape(1, config.num_channels, *sides)}]
    if kind != "input_ids":
        return []
    words = min(256, len(model.get_input_embeddings().weight))
    rows = (torch.arange(32).reshape(2, 16) * 7 % words).split(1)
    more = ("decoder_input_ids",) if config.is_encoder_decoder else ()
    return [dict.fromkeys((kind, *more), row) for row in rows]


def _outputs(model: Any, inputs: list[dict[str, Tensor]]) -> list[Tensor]:
    """Logits, or what the model has in their place, of each input."""
    values = [value for batch in inputs for value in model(**batch).values()]
    return [
        value.float() for value in values if torch.is_tensor(value) and value.is_floating_point()
    ]

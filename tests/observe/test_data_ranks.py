"""Ranks that train on the same data are counted once, whatever spread them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.observe.test_view import directory, now, run_document  # noqa: E402
from workbench.launching.capture.batches import NOTHING, measure, together  # noqa: E402
from workbench.observe.data_ranks import DataRanks  # noqa: E402
from workbench.observe.view import ViewBuilder  # noqa: E402
from workbench.store.run_record import RunRecord  # noqa: E402


def written(folder: Path, data_of: dict[int, int], *, constant: bool = False) -> dict[str, Any]:
    """The view of ranks that each read the data of a replica, as the hook writes their lines."""
    paths = directory(folder)
    for rank, replica in data_of.items():
        lines: list[dict[str, Any]] = []
        for step in range(1, 7):
            ids = torch.arange(64).reshape(4, 16) + (0 if constant else 1000 * replica + step)
            found = measure({"input_ids": ids}, fingerprint=step <= 4)
            line = {"step": step, "time": float(step), "step_seconds": 0.5}
            lines.append(line | {"tokens": found.tokens, "samples": found.samples})
            if found.fingerprint is not None:
                lines[-1]["batch"] = found.fingerprint
        paths.rank_metrics(rank).write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    document = {**run_document(len(data_of)), "tokens_per_step": None, "recipe": None}
    builder = ViewBuilder(paths, RunRecord.of(document))
    builder.read(final=True)
    return builder.snapshot(now())


@pytest.mark.parametrize("dp", [1, 2, 4])
@pytest.mark.parametrize("shared", [1, 2, 4])
@pytest.mark.parametrize("order", ["neighbours", "strided"])
def test_tokens_and_samples_are_those_of_the_replicas(
    tmp_path: Path, dp: int, shared: int, order: str
) -> None:
    """dp replicas, each of `shared` ranks (tensor x pipeline), in either order of the mesh."""
    grid = itertools.product(range(dp), range(shared))
    places = {
        (replica * shared + part if order == "neighbours" else part * dp + replica): replica
        for replica, part in grid
    }
    view = written(tmp_path, places)
    assert view["tokens_per_second"] == dp * 64 / 0.5
    assert view["samples_per_second"] == dp * 4 / 0.5
    assert view["throughput_upper_bound"] is False


def test_constant_data_tells_nothing_and_the_rate_is_called_an_upper_bound(tmp_path: Path) -> None:
    view = written(tmp_path, {0: 0, 1: 1}, constant=True)
    assert view["tokens_per_second"] == 2 * 64 / 0.5
    assert view["throughput_upper_bound"] is True


def test_data_that_is_equal_once_is_not_shared() -> None:
    ranks = DataRanks()
    ranks.add({0: 7, 1: 7})
    assert ranks.total({0: 10, 1: 10}) == 10
    ranks.add({0: 8, 1: 9})
    assert ranks.total({0: 10, 1: 10}) == 20
    assert ranks.total({}) is None


def test_what_a_batch_holds() -> None:
    images, labels = torch.rand(8, 3, 4, 4), torch.arange(8)
    mask = torch.ones(2, 5, dtype=torch.long)
    mask[0, 3:] = 0
    ids = torch.arange(10).reshape(2, 5)
    for batch, tokens, samples in (
        ((images, labels), None, 8),
        ({"input_ids": ids, "attention_mask": mask}, 8, 2),
        ({"input_ids": ids}, 10, 2),
        ([{"nested": (labels,)}], None, 8),
        ("words", None, None),
        (torch.tensor(3.0), None, None),
    ):
        found = measure(batch, fingerprint=True)
        assert (found.tokens, found.samples) == (tokens, samples)
    one, same, other = (
        measure((images, made), fingerprint=True).fingerprint
        for made in (labels, labels.clone(), labels + 1)
    )
    assert one == same != other
    assert measure(labels, fingerprint=False).fingerprint is None
    step = together(
        together(NOTHING, measure(ids, fingerprint=True)), measure(ids, fingerprint=True)
    )
    assert step.samples == 4
    assert step.fingerprint != measure(ids, fingerprint=True).fingerprint

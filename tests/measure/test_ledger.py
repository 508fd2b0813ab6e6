"""What the probe's ledger counts per operator: attention, lookups, views; incomplete batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from workbench.launching.capture.probe.ledger import BACKWARD, FORWARD, Ledger
from workbench.launching.capture.probe.loaders import _short
from workbench.launching.capture.probe.record import facts_of_optimizers, imported_files


def ledger_of(run: Callable[[], Any]) -> Ledger:
    ledger = Ledger(torch.device("cpu"))
    with ledger:
        run()
    return ledger


def test_attention_on_a_cpu_counts_as_attention() -> None:
    shape = (2, 4, 128, 32)
    query, key, value = (torch.randn(shape, requires_grad=True) for _ in range(3))

    def run() -> None:
        torch.nn.functional.scaled_dot_product_attention(query, key, value).sum().backward()

    work = ledger_of(run).work
    product = 2 * 2 * 4 * 128 * 128 * 32  # one of queries and keys
    assert work[FORWARD].flops["attention"] == 2 * product
    assert work[BACKWARD].flops["attention"] == 5 * product  # scores once more, then 4 gradients


def test_a_lookup_moves_the_rows_that_it_returns_and_a_view_nothing() -> None:
    table, rows = torch.randn(10_000, 64), torch.arange(8)
    work = ledger_of(lambda: torch.nn.functional.embedding(rows, table)).work[FORWARD]
    assert work.moved_bytes == 2 * 8 * 64 * 4
    viewed = ledger_of(lambda: table.view(-1)[1:].unsqueeze(0)).work[FORWARD]
    assert (viewed.operators, viewed.moved_bytes) == (0, 0)
    scattered = ledger_of(lambda: torch.select_scatter(table, table[0], 0, 1)).work[FORWARD]
    assert scattered.moved_bytes >= 2 * 10_000 * 64 * 4


def test_a_kernel_of_another_library_is_named_as_uncounted() -> None:
    with torch.library._scoped_library("mine", "DEF") as library:
        library.define("product(Tensor a) -> Tensor")
        library.impl("product", lambda a: a @ a, "CPU")
        ledger = ledger_of(lambda: torch.ops.mine.product(torch.eye(2)))
    assert ledger.unknown == {"mine.product"}


def test_frozen_weights_of_an_optimizer_have_no_state_of_their_own() -> None:
    trained, frozen = (torch.nn.Parameter(torch.zeros(size)) for size in (4, 96))
    optimizer = torch.optim.AdamW([trained, frozen])
    trained.grad = torch.ones(4)
    optimizer.step()
    (facts,) = facts_of_optimizers([optimizer], [trained])
    assert facts["elements"] == 4
    assert facts["state_bytes"] == 2 * 4 * 4 + 4  # and the count of steps


@pytest.mark.parametrize(
    ("shapes", "samples"),
    [
        ([(8, 3), (8,)], 8),
        ([(32, 3), (32,)], None),
        ([(20, 32), (20, 32)], None),
        ([(900, 3), (2, 4000)], None),
    ],
    ids=["incomplete", "complete", "batch second", "graphs"],
)
def test_an_incomplete_batch_shows_in_its_shapes(
    shapes: list[tuple[int, ...]], samples: int | None
) -> None:
    assert _short([torch.zeros(shape) for shape in shapes], 32) == samples


def test_files_beside_the_scripts_folder_count_and_installed_ones_do_not(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "network_of_mine.py").write_text("width = 1")
    monkeypatch.syspath_prepend(str(tmp_path / "src"))
    __import__("network_of_mine")
    found = imported_files(str(tmp_path / "scripts" / "train.py"))
    assert "../src/network_of_mine.py" in found
    assert not [name for name in found if "site-packages" in name or "/workbench/" in name]

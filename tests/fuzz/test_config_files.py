"""Accelerate YAML, DeepSpeed JSON and price tables of anybody."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import workbench as wb
from tests.fuzz import junk
from workbench.describe.price_files import read_prices
from workbench.launching.prepare import accelerate_config
from workbench.launching.prepare.deepspeed_config import deepspeed_text

quick = settings(max_examples=50, suppress_health_check=list(HealthCheck))
ACCELERATE: dict[str, Any] = yaml.safe_load(
    accelerate_config.config_text(wb.Strategy.parse("hsdp", 4), "Block")
)
DEEPSPEED: dict[str, Any] = json.loads(deepspeed_text(wb.Strategy.parse("zero3", 2), "cpu"))
PRICES = "name,gpu,gpus,usd_per_hour,memory\nmine,H100-SXM,8,20.5,\n"


def read(name: str, content: bytes, reader: Any = wb.read_strategy) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        said = name
        try:
            reader(path)
        except wb.WorkbenchError as error:
            said = str(error)
        assert name in said
        assert len(said) < 3000


@pytest.mark.slow
@quick
@given(junk.spoilt(ACCELERATE).map(junk.encoded) | junk.raw)
@example(b"distributed_type: FSDP\nnum_processes: 1e999\n")
@example(b"distributed_type: FSDP\nnum_processes: .nan\n")
@example(b"distributed_type: FSDP\nnum_processes: 2\nfsdp_config: {1: 2, null: 3}\n")
@example(b"distributed_type: FSDP\nnum_processes: 1000000000000\n")
@example(b"? [a, b]\n: 1\n")
@example(b"a: 2001-99-99\n")
@example(b"- " * 50_000)
@example(b"{" * 50_000)
@example(b"x: &a [*a]\n")
def test_accelerate_files(content: bytes) -> None:
    read("accelerate.yaml", content)


@quick
@given(junk.spoilt(DEEPSPEED).map(junk.encoded) | junk.raw)
@example(b'{"zero_optimization": {"stage": 3, "stage": 9e999}}')
@example(b'{"train_micro_batch_size_per_gpu": true, "train_batch_size": 1}')
def test_deepspeed_files(content: bytes) -> None:
    read("deepspeed.json", content)


cells = st.text(max_size=12) | st.sampled_from(
    ["", "nan", "inf", "-1", "1e999", "9" * 400, '"', "=cmd()", "H100-SXM", "\x00", "8", "20.5"]
)


@quick
@given(
    st.lists(st.lists(cells, max_size=7).map(",".join), max_size=6).map(
        lambda lines: "\n".join([PRICES, *lines]).encode(errors="replace")
    )
    | junk.raw
)
def test_price_tables(content: bytes) -> None:
    read("prices.csv", content, lambda path: read_prices(path, own=True))

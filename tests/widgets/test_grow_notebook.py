"""The notebook on growing: what it says of the engines holds when it is run."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("anywidget", reason="the lab extra is not installed")
pytest.importorskip("accelerate", reason="the train extra is not installed")

from tests.widgets.notebook_run import assert_short_and_clean, prose, runner

NAME = "13_grow"


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory):
    return runner(tmp_path_factory)(NAME)


def test_it_is_short_and_clean() -> None:
    assert_short_and_clean(NAME)


@pytest.mark.full
@pytest.mark.slow
def test_one_script_for_every_engine_and_it_trains_here(said) -> None:
    said.has(r"^succeeded \| last loss \d", r"^launch\.sh is the same: True$")
    said.has(r"--num_machines 2 .*code/gpt\.py .*--resume latest$")
    for variable in ("SKYPILOT_NODE_IPS", "DSTACK_MASTER_NODE_IP", "PRIMARY_ADDR"):
        said.has(variable)
    said.has(r"^import workbench fails: True$", r"^exit code 0 \| True$")


@pytest.mark.full
@pytest.mark.slow
def test_runpod_is_refused_by_all_but_those_that_know_its_clusters(said) -> None:
    said.has(r"^dstack +yes$", r"^runpod +yes$", r"^skypilot +.*non-trivial")
    said.has(r"^slurm +.*does not rent machines", "Use --to runpod")


@pytest.mark.full
@pytest.mark.slow
def test_the_cheapest_row_has_no_fabric_and_one_is_started_by_nobody(said) -> None:
    rows = [line for line in said.text.splitlines() if "$/h" in line and " x " in line]
    assert "no fabric known" in rows[0]  # "the cheapest row has no known fabric"
    assert any(row.endswith("nobody") for row in rows)  # "a row that no one starts"


@pytest.mark.full
@pytest.mark.slow
def test_the_mistakes_are_refused(said) -> None:
    said.has("lose their disks when interrupted", "object stores cannot be mounted there")
    said.has(r"'NCCL_SOCKET_IFNAME': 'ens1'", r"^export NCCL_SOCKET_IFNAME=")


@pytest.mark.full
@pytest.mark.slow
def test_ports_and_ranks_of_torchrun(said) -> None:
    said.has(r"^second run: address already in use$")
    ports = re.findall(r"^port (\d+), machine 0", said.text, re.MULTILINE)
    assert len(set(ports)) == 3
    assert "12355" not in ports
    said.has(r"^port \d+, machine 0 node_rank is only used for static rdzv_backend\.")


def test_what_it_promises() -> None:
    assert "Nothing here rents anything" in prose(NAME)

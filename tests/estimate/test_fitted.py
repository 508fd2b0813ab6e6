"""Constants that are fitted: each is used, lies in its bounds, and can be replaced for a fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import workbench.estimate
from workbench.describe import Cluster, Conditions, Model, Strategy, Workload
from workbench.describe.catalog import gpu
from workbench.describe.implementation import STACKS
from workbench.describe.job import Job
from workbench.estimate.exchange import DDP_BUCKET
from workbench.estimate.fitted import constants, fitted, using
from workbench.estimate.network import Group, links
from workbench.estimate.rates import machine, stack_efficiency
from workbench.estimate.step_time import step_time
from workbench.estimate.time_range import time_range
from workbench.estimate.timing import STACK, StepTime

WORK = Workload(model=Model.catalog("llama-3-8b"), seq_len=4096, micro_batch=2)
NODE = Cluster.rented("h100", 8)
FSDP = Strategy.parse("fsdp", 8)
CODE = "\n".join(
    path.read_text() for path in Path(workbench.estimate.__file__).parent.rglob("*.py")
)
FAMILIES = ("ampere", "hopper", "blackwell", "cdna3", "volta", "ada", "other")
FABRICS = ("infiniband", "roce", "efa", "tcpx", "omni-path", "ethernet")


def by(stack: str) -> StepTime:
    kernels = replace(WORK.kernels, software_stack=stack)
    return step_time(replace(WORK, kernels=kernels), FSDP, NODE)


@pytest.mark.parametrize("name", list(constants()))
def test_a_constant_is_used_and_lies_in_its_bounds(name: str) -> None:
    constant = constants()[name]
    assert constant.low <= constant.value <= constant.high
    assert constant.meaning
    stem, _, last = name.rpartition("_")
    fabric, _, _ = name.partition("_")
    of_a_stack = any(name == f"stack_{stack}_{last}" for stack in STACKS)
    of_a_family = last in FAMILIES and (f'"{stem}"' in CODE or "flash" in stem or of_a_stack)
    assert f'"{name}"' in CODE or of_a_family or (fabric in FABRICS and f"}}_{last}" in CODE)


def test_other_values_last_as_long_as_they_are_used() -> None:
    before = step_time(WORK, FSDP, NODE).step_seconds
    with using({"sustained_hopper": 0.6}):
        assert step_time(WORK, FSDP, NODE).step_seconds > before
    assert step_time(WORK, FSDP, NODE).step_seconds == before
    with pytest.raises(KeyError), using({"not_there": 1.0}):
        pass


def test_an_unknown_stack_is_the_mean_of_the_known_ones() -> None:
    known = [stack_efficiency(stack, "Hopper") for stack in STACKS if stack != "unknown"]
    assert min(known) <= stack_efficiency("unknown", "Hopper") <= max(known) <= 1.0


def test_the_stack_is_a_part_of_its_own() -> None:
    """Named, in proportion to what computes, and zero where the stack loses nothing."""
    step = by("unknown")
    share = step.parts[STACK] / sum(
        step.parts.get(name, 0.0) for name in ("matmul", "attention", "memory-bound operations")
    )
    assert share == pytest.approx(1 / stack_efficiency("unknown", "Hopper") - 1)
    with using({f"stack_{stack}_hopper": 1.0 for stack in STACKS if stack != "unknown"}):
        assert STACK not in by("unknown").parts


def test_a_trainer_names_its_stack_and_an_option_another() -> None:
    job = Job.of("llama-3-8b", gpu="h100", gpus=8, trainer="nemo")
    assert job.workload.kernels.software_stack == "recipe"
    given = Job.of("llama-3-8b", gpu="h100", gpus=8, trainer="nemo", software_stack="eager")
    assert given.workload.kernels.software_stack == "eager"


def test_a_range_is_wider_where_the_stack_is_unknown() -> None:
    for precision in ("bf16", "fp8"):
        work = replace(WORK, precision=precision)
        kernels = replace(work.kernels, software_stack="eager")
        known = time_range(replace(work, kernels=kernels), FSDP)
        unknown = time_range(work, FSDP)
        assert unknown[1] / unknown[0] >= known[1] / known[0] > 1
    step = step_time(WORK, FSDP, NODE)
    assert (step.low, step.high) == time_range(WORK, FSDP)


def test_many_nodes_share_a_fabric_less_well() -> None:
    network = links(Cluster.rented("h100", 8, 64, network="8x400 infiniband"), Conditions())
    few, many = (network.group(nodes, 8) for nodes in (2, 64))
    assert isinstance(few, Group)
    assert network.bandwidth(many) < network.bandwidth(few) == network.port


def test_gradients_travel_in_buckets_and_each_pays_its_latency() -> None:
    """With as many ranks a smaller bucket costs more; DDP's default is 25 MiB."""
    cluster = Cluster.rented("h100", 8, 16, network="8x400 infiniband")
    ddp = Strategy.parse("ddp", 128).with_options(overlap_gradients=None)

    def exposed(elements: int | None) -> float:
        step = step_time(WORK, replace(ddp, reduce_bucket=elements), cluster)
        return step.parts["exposed communication: gradients"]

    assert (
        exposed(DDP_BUCKET // 4 // 8)
        > exposed(None)
        == pytest.approx(exposed(DDP_BUCKET // 4), rel=0.02)
    )
    assert exposed(10**10) < exposed(None)


def test_fitted_gives_the_tables_value() -> None:
    assert fitted("contention") == constants()["contention"].value


def test_a_part_that_was_measured_apart_has_a_ceiling_of_its_own() -> None:
    """GB200's large matmuls reach 1,822 of 2,500 TFLOP/s, B200's 1,745 of 2,250."""
    rates = {
        name: machine(gpu(name), "bf16", 3, Conditions()).matmul_flops
        for name in ("b200-sxm", "gb200")
    }
    assert rates["gb200"] / rates["b200-sxm"] == pytest.approx(1822 / 1745, rel=0.01)

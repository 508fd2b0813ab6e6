"""Rented clusters from the catalog; this host's GPUs recognised by the driver's name."""

from __future__ import annotations

import math

import pytest

from workbench.describe import Cluster, Gpu, catalog, detection
from workbench.describe.accelerators import recognise
from workbench.describe.job import Job
from workbench.errors import UsageError

MIB = 2**20


def test_rented_has_the_cards_of_one_node() -> None:
    cluster = Cluster.rented("h100-sxm", gpus=8, nodes=2, usd_per_hour=20)
    assert len(cluster.gpus) == 8
    assert [gpu.index for gpu in cluster.gpus] == list(range(8))
    assert cluster.gpus[0].memory_bytes == 81559 * MIB
    assert cluster.accelerator is catalog.gpu("h100")
    assert (cluster.nodes, cluster.world_size, cluster.usd_per_hour) == (2, 16, 20.0)
    assert cluster.name == "2 x 8 h100-sxm"
    assert cluster.device == "cuda"
    assert cluster.cpu_cores is None
    assert Cluster.rented("a100").usd_per_hour is None
    assert Cluster.rented(catalog.gpu("l4"), gpus=1).name == "1 l4"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"gpu": "h101"}, "Unknown accelerator 'h101'. Did you mean"),
        ({"gpu": "h100", "gpus": 0}, "gpus must be at least 1, not 0"),
        ({"gpu": "h100", "gpus": -1}, "at least 1"),
        ({"gpu": "h100", "gpus": 2.5}, "whole number"),
        ({"gpu": "h100", "gpus": True}, "whole number"),
        ({"gpu": "h100", "gpus": 10**9}, "at most 128"),
        ({"gpu": "h100", "gpus": 256}, "not 256. These are the GPUs of one node.*--nodes 32"),
        ({"gpu": "h100", "nodes": 0}, "nodes must be at least 1"),
        ({"gpu": "h100", "nodes": 10**7}, "at most"),
        ({"gpu": "h100", "usd_per_hour": -1}, "from 0"),
        ({"gpu": "h100", "usd_per_hour": math.nan}, "from 0"),
        ({"gpu": "h100", "usd_per_hour": "2"}, "must be a number"),
    ],
)
def test_nonsense_is_refused(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        Cluster.rented(**arguments)


@pytest.mark.parametrize(
    ("name", "mebibytes", "found"),
    [
        ("NVIDIA H100 80GB HBM3", 81559, "h100-sxm"),
        ("NVIDIA A100-SXM4-40GB", 40960, "a100-sxm-40"),
        ("NVIDIA A100-SXM4-40GB", 40536, "a100-sxm-40"),
        ("NVIDIA GeForce RTX 4090", 24564, "rtx-4090"),
        ("NVIDIA GH200 480GB", 97871, "gh200-96"),
        ("NVIDIA GH200 120GB", 97871, "gh200-96"),  # both names say Grace's memory
        ("NVIDIA RTX A6000", 46068, "rtx-a6000"),  # ECC on; the catalog has it off
        ("NVIDIA L40S", 49140, "l40s"),  # ECC off; the catalog has it on
        ("AMD Instinct MI300X VF", 196592, "mi300x"),  # a whole one, in a virtual machine
        ("Tesla T4", 15109, "t4"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", 9856, None),
        ("NVIDIA H100 80GB HBM3", 10240, None),
        ("NVIDIA GeForce RTX 4060 Ti", 16380, "rtx-4060ti"),
        ("NVIDIA GeForce RTX 4060 Ti", 8188, None),
        ("NVIDIA GeForce RTX 3080", 10240, "rtx-3080"),
        ("NVIDIA Thor", 122880, None),
    ],
)
def test_drivers_names(name: str, mebibytes: int, found: str | None) -> None:
    one = recognise(name, mebibytes * MIB)
    assert (one.id if one else None) == found


def test_the_host_knows_its_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    def host(*names: str) -> Cluster:
        gpus = tuple(
            Gpu(index=index, name=name, memory_bytes=81559 * MIB)
            for index, name in enumerate(names)
        )
        monkeypatch.setattr(detection, "visible_gpus", lambda: gpus)
        return detection.detect_host()

    found = host("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3").accelerator
    assert found is catalog.gpu("h100")
    assert host("NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe").accelerator is None
    assert host("Something new").accelerator is None
    assert host().accelerator is None
    assert host().world_size == 1


def test_the_plain_constructor_still_works() -> None:
    cluster = Cluster(name="box", gpus=(Gpu(index=0, name="X", memory_bytes=1),))
    assert cluster.accelerator is None
    assert cluster.world_size == 1


@pytest.mark.parametrize(
    ("gpu", "gpus", "nodes", "noted"),
    [
        ("h100", 64, 1, "For 8 such machines: --nodes 8 --gpus 8."),
        ("a100-80gb", 12, 2, "most machines have at most 8."),
        ("h100", 8, 4, ""),
        ("gb200", 72, 1, ""),
    ],
)
def test_more_gpus_than_a_machine_has_are_noted(
    gpu: str, gpus: int, nodes: int, noted: str
) -> None:
    notes = Job.of("gpt2", gpu=gpu, gpus=gpus, nodes=nodes, strategy="fsdp").notes
    several = [note for note in notes if "count as one machine" in note]
    assert [note.endswith(noted) for note in several] == ([True] if noted else [])

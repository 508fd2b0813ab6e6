"""The notebooks on data parallelism and sharding: every claim in them holds when they are run.

What the simulated ranks say is exact, so it is asserted exactly; estimates are ranges as wide as
the sentence beside them is true; real runs must agree to 1e-4.
"""

from __future__ import annotations

import re

import pytest

pytest.importorskip("anywidget", reason="the lab extra is not installed")
pytest.importorskip("accelerate", reason="the train extra is not installed")

from tests.widgets.notebook_run import (
    ROOT,
    assert_exercise,
    assert_short_and_clean,
    beside,
    prose,
    read,
    runner,
)

DATA, SHARDING = "05_data_parallel", "06_sharding"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT / "notebooks"))  # where Jupyter's kernel starts
        yield runner(tmp_path_factory)


@pytest.mark.parametrize("name", [DATA, SHARDING])
def test_they_are_short_and_clean(name: str) -> None:
    assert_short_and_clean(name)


@pytest.mark.parametrize("name", [DATA, SHARDING])
def test_the_solution_is_folded(name: str) -> None:
    folded = [cell for cell in read(name).cells if cell.metadata.get("jupyter")]
    assert [cell.metadata["jupyter"] for cell in folded] == [{"source_hidden": True}]


def test_a_program_after_the_hint_can_be_run_again() -> None:
    """It adds to its chunks in place: the gradients that all cells share must stay as they are."""
    (hint,) = re.findall(r"`(list\(.*?tensor_split\(4\)\))`", prose(DATA))
    code = [cell.source for cell in read(DATA).cells if cell.cell_type == "code"]
    (first,) = [source for source in code if "def through_rank_0" in source]
    (solution,) = [source for source in code if "def ring" in source]
    with beside("simulated_ranks") as helpers:
        names = {"torch": helpers.torch, "check": helpers.check, "simulate": helpers.simulate}
        exec(first, names)
        body = solution.partition("\n\n\n")[0].splitlines()
        body[1] = f"    chunks = {hint}"
        exec("\n".join(body), names)
        goal = {"results": names["sums"], "seconds": 1.5, "sent": 1800}
        for _ in range(2):
            assert helpers.check(helpers.simulate(names["ring"], 4, bandwidth=1200), **goal)


@pytest.mark.full
@pytest.mark.slow
def test_means_and_rings(run) -> None:
    said = run(DATA)
    said.within(0, r"^largest difference: ([\de.-]+)$", 1e-12)
    said.has(r"^mean of the means 3\.0, mean over all tokens 2\.0$", r"right weights 2\.0$")
    said.has(*(rf"^ *{ranks} ranks: 16\.0 bytes per parameter on each" for ranks in (1, 8, 64)))
    said.has(r"^6 s; .*sent \[3600, 1200, 1200, 1200\]", r"recommended to use .*DistributedData")
    said.has(*(rf"^ *{n} ranks: +{2 * (n - 1)} s$" for n in (2, 4, 8, 16)))
    said.has(r"seconds  6, target 1\.5: 4\.00 times too much\n.*\nNot yet\.")
    said.has(r"seconds  1\.5, target 1\.5: reached\nsent     1800, target 1800: reached\nSolved\.")
    for n in (2, 4, 8, 16, 32):  # 2 (n - 1) / n times the gradients, and as many latencies
        seconds = 2 * (n - 1) / n + 2 * (n - 1) * 0.01
        said.within(seconds - 0.06, rf"^ *{n} ranks: sent .* times .*, ([\d.]+) s", seconds + 0.06)
        assert said.number(rf"^ *{n} ranks: sent ([\d.]+)") == pytest.approx(
            2 * (n - 1) / n, abs=0.01
        )
    buckets = [said.number(rf"^ *{count} buckets: ([\d.]+) s") for count in (1, 4, 40, 400)]
    assert min(buckets) == buckets[2]
    assert buckets[3] == pytest.approx(buckets[0], abs=0.05)  # "cost as much as they hide"


@pytest.mark.full
@pytest.mark.slow
def test_real_processes_equal_one(run) -> None:
    said = run(DATA)
    for rank in (0, 1):
        said.within(0, rf"^rank {rank} of 2: largest difference to one process ([\de.-]+)", 1e-5)
    parameters = 16 * 64 + 64 + 64 * 64 + 64 + 64 + 1
    assert f"{parameters:,} parameters, {4 * parameters:,} bytes" in prose(DATA)
    for way, times in (("each", 4), ("no_sync", 1), ("fp16", 0.5)):
        sent = said.number(rf"^{way} .* and ([\d,]+) bytes per step")
        assert sent == pytest.approx(4 * parameters * times)
    said.within(0, r"^no_sync .* difference ([\de.-]+)", 1e-5)  # "the same to rounding"
    said.within(1e-5, r"^fp16 .* difference ([\de.-]+)", 1)  # "something is lost"
    said.has(r"^no_sync +1\.9 buckets")
    rates = [
        said.number(rf"^accumulate {times}, hook {hook} +([\d,]+)")
        for times in (1, 8)
        for hook in ("none", "bf16")
    ]
    assert rates[1] / rates[0] > 1.2 > rates[3] / rates[2] > 1  # "the other brings less"
    said.has(r"^1 ranks, accumulate 8: +65,536 ", r"^8 ranks, accumulate 1: +65,536 ")
    said.has(r"^8 ranks, accumulate 8: +524,288 ", r"^single succeeded\nddp succeeded\n20 steps")
    said.within(0, r"^20 steps, 5\.545\d to 3\.\d+, at most ([\de.-]+) apart", 1e-4)


@pytest.mark.full
@pytest.mark.slow
def test_what_is_where_and_what_travels(run) -> None:
    said = run(SHARDING)
    for name, held in {"ddp": 16, "zero1": 5.5, "zero2": 3.8, "zero3": 2, "fsdp": 2}.items():
        assert said.number(rf"^{name} +([\d.]+) =") == pytest.approx(held, abs=0.06)
    said.has(r"^all-reduce: 1\.5 s, each sent 1800, ", r"^two halves: 1\.5 s, each sent 1800, ")
    said.has(r"^same weights: True$")
    said.has(r"^reshard False: sent 1\.50 times the weights, holds 4500$")
    said.has(r"^reshard True: sent 2\.25 times the weights, holds 2100$")  # 1.5 times DDP's 1.5
    said.has(r"^10\.5 s; elements per rank: peak \[3000", r"seconds  10\.5, target 6\.75: 1\.56")
    said.has(r"target 6\.75: reached\nelements 9000, target 4200: 2\.14 times too much\nNot yet")
    said.has(r"target 6\.75: reached\nelements 4200, target 4200: reached\nSolved\.")
    full, hybrid = (said.number(rf"^{name} +([\d.]+) s, states") for name in ("full", "hybrid"))
    assert hybrid / full == pytest.approx(1 / 3, abs=0.05)
    for network, low, high in (("100 ethernet", 1.6, 2.2), ("8x100 roce", 1.1, 1.4)):
        rates = [
            said.number(rf"^{network} +{name}: +([\d,]+) tokens/s") for name in ("fsdp", "hsdp")
        ]
        assert low < rates[1] / rates[0] < high
    kept, moved, all_out = (
        [
            said.number(rf"^{row} +\d+ GiB, tokens/s ([\d,]+)"),
            said.number(rf"^{row} .* accumulated ([\d,]+)"),
            said.number(rf"^{row} +(\d+) GiB"),
        ]
        for row in ("nothing", "optimizer", r"optimizer \+ parameters")
    )
    assert moved[0] / kept[0] < 0.3  # "a large batch dilutes its price"
    assert moved[1] / kept[1] > 0.6
    assert all_out[1] < moved[1]
    assert 0 < moved[2] - all_out[2] < 5  # "little is gained"


@pytest.mark.full
@pytest.mark.slow
def test_fsdp_itself_and_five_curves(run) -> None:
    said = run(SHARDING)
    said.has(
        r"=True\n +at first: +\[1024, 1024, 1024, 1024\]\n"
        r" +in layer 1: +\[1024, 4096, 1024, 1024\]\n"
        r" +after forward: \[1024, 1024, 1024, 1024\]\n +after backward: 1024 and gradients of 1024"
    )
    said.has(r"=False\n.*\n.*\n +after forward: \[4096, 4096, 4096, 4096\]\n +after backward: 1024")
    said.has(r"^full False: 4096 elements", r"^full True: 16384 elements")
    for name in ("ddp", "fsdp", "zero1", "zero2", "zero3"):
        said.has(rf"^{name} succeeded$")
        said.within(0, rf"^{name} +20 steps, 5\.545\d to 3\.\d+, at most ([\de.+-]+)", 1e-4)


@pytest.mark.parametrize(
    ("name", "start", "answers", "wrong"),
    [
        (DATA, "sent = None", {"sent": "1875", "loss": "2.5"}, None),
        (DATA, "sent = None", {"sent": "2000"}, "2 (n - 1) / n"),
        (DATA, "sent = None", {"loss": "3.0"}, "sum the losses"),
        (SHARDING, "states_gb = None", {"states_gb": "1.75", "sent_gb": "147"}, None),
        (SHARDING, "states_gb = None", {"states_gb": "14"}, "divided by the ranks"),
        (SHARDING, "states_gb = None", {"sent_gb": "98"}, "3 (n - 1) / n"),
    ],
)
def test_exercises_are_checked(
    name: str, start: str, answers: dict[str, str], wrong: str | None
) -> None:
    assert_exercise(name, start, answers, wrong)

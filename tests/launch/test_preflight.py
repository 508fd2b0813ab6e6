"""What this host cannot do is refused before anything starts; what may go wrong is said."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import re
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import workbench as wb
from tests.pod.place import Placed
from workbench.errors import HostError, UsageError
from workbench.launching.prepare import preflight, preflight_warnings
from workbench.launching.prepare.launcher_process import inherited
from workbench.launching.prepare.limits import check_limits_known
from workbench.notifying import Target, targets, write_targets
from workbench.observe import doctor
from workbench.observe.gpu import GpuHolder
from workbench.recover import Recovery
from workbench.rehearsing.driver.pod import Pod


def asked(store: Path, *arguments: str, **options: Any) -> wb.Request:
    options = {"processes": 2, "cpu": True} | options
    return wb.request("gpt", arguments, store=store, **options)


def on_gpus(request: wb.Request, gpu: str, gpus: int) -> wb.Request:
    """The same request as it would be on a host with these GPUs."""
    cluster = wb.Cluster.rented(gpu, gpus=gpus)
    assert request.workload is not None
    predicted = wb.training_memory(request.workload, request.strategy, cluster)
    return replace(request, cluster=cluster, device="cuda", predicted=predicted)


def test_restarts_without_checkpoints_are_warned_of(tmp_path: Path) -> None:
    how = {"cpu": True, "store": tmp_path, "recovery": Recovery(restarts=2)}
    anew = wb.request("gpt", ["--steps", "9"], **how)
    assert any("start over" in one for one in anew.warnings)
    single = wb.request("gpt", ["--steps", "9"], **(how | {"recovery": Recovery(restarts=1)}))
    assert any(one.startswith("1 restart is allowed") for one in single.warnings)
    saving = wb.request("gpt", ["--steps", "9", "--checkpoint-minutes", "5"], **how)
    assert not any("start over" in one for one in saving.warnings)


def test_targets_of_another_environment_do_not_keep_a_run_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    write_targets({"phone": Target(name="phone", url="ntfys://topic")})
    monkeypatch.setattr(targets, "find_spec", lambda module: None)
    (warning,) = asked(tmp_path, "--steps", "5", notify=("all",)).warnings
    assert "phone: Apprise is not installed" in warning
    assert f"{sys.executable} -m pip install apprise" in warning
    with pytest.raises(UsageError, match="pip install apprise"):
        asked(tmp_path, "--steps", "5", notify=("phone",))
    assert asked(tmp_path, "--steps", "5", notify=("none",)).warnings == ()


def of_script(folder: Path, lines: str, **options: object) -> wb.Request:
    """A script with these lines, as it would be launched on CPU ranks."""
    script = folder / "train.py"
    script.write_text(lines + "\n")
    return wb.request(script, cpu=True, store=folder, **options)


BOTH = """from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
"""


@pytest.mark.parametrize(
    ("lines", "strategy", "is_told"),
    [
        ("from torch.nn.parallel import DistributedDataParallel as DDP", "fsdp", True),
        ("import torch\nwrap = torch.nn.parallel.DistributedDataParallel", "zero3", True),
        ("from torch.nn.parallel import DistributedDataParallel as DDP", "ddp", False),
        ("import accelerate\nfrom torch.nn.parallel import DistributedDataParallel", "fsdp", False),
        (BOTH, "fsdp", False),
        ("import torch", "fsdp", False),
    ],
)
def test_a_script_that_wraps_its_model_in_ddp_is_not_sharded(
    tmp_path: Path,
    lines: str,
    strategy: str,
    is_told: bool,  # noqa: FBT001
) -> None:
    request = of_script(tmp_path, lines, processes=2, strategy=strategy)
    assert any("so it trains as ddp" in warning for warning in request.warnings) is is_told


@pytest.mark.parametrize(
    ("lines", "processes", "alone"),
    [
        ("import os\nimport torch.distributed as dist\ndist.init_process_group('gloo')", 1, True),
        ("from torch.distributed import init_process_group\ninit_process_group()", 1, True),
        ("import torch.distributed as dist\ndist.init_process_group('gloo')", 2, False),
        (
            "import os, torch\nif 'RANK' in os.environ: torch.distributed.init_process_group()",
            *(1, False),
        ),
        ("import accelerate\nimport torch\ntorch.distributed.init_process_group()", 1, False),
        ("import torch", 1, False),
    ],
)
def test_a_single_rank_that_makes_a_group_is_given_the_variables_for_it(
    tmp_path: Path,
    lines: str,
    processes: int,
    alone: bool,  # noqa: FBT001
) -> None:
    request = of_script(tmp_path, lines, processes=processes)
    assert (request.environment.get("WORLD_SIZE") == "1") is alone
    assert ("MASTER_PORT=0" in request.shell()) is alone


OWN = """import argparse
p = argparse.ArgumentParser()
p.add_argument("--lr", type=float, default=0.1)
p.add_argument("--learning-decay", type=float)
p.add_argument("--arch", choices=["vit", "resnet"])
p.add_argument("--compile", action="store_true")
p.add_argument("data", nargs="?")
"""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--lr", "abc"], "train.py: --lr is 'abc'; give a number."),
        (["--lr=abc"], "train.py: --lr is 'abc'; give a number."),
        (["--arch", "vgg"], "train.py: --arch is 'vgg'; choose vit, resnet."),
        (["--learning-rate", "1"], "has no option --learning-rate in its source. It has --lr"),
        (["--lr", "-1e-3", "--compile", "--learn", "3", "a b"], ""),
        ([], ""),
    ],
)
def test_arguments_that_the_script_will_refuse_are_told_before_it_starts(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(OWN + "p.parse_args()\n")
    warnings = wb.request(script, arguments, cpu=True, store=tmp_path).warnings
    assert any(said in warning for warning in warnings) if said else not warnings
    script.write_text(OWN + "p.parse_known_args()\n")
    assert wb.request(script, arguments, cpu=True, store=tmp_path).warnings == ()


def test_nothing_is_said_where_all_is_well(tmp_path: Path) -> None:
    assert asked(tmp_path, "--steps", "5").warnings == ()


def test_a_taken_port_is_refused_and_a_free_one_is_not(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"Port {port} cannot be used"):
            asked(tmp_path, port=port)
    assert asked(tmp_path, port=port).options.port == port
    with pytest.raises(UsageError, match="between 0"):
        asked(tmp_path, port=70_000)


def test_more_memory_than_the_host_has_is_said_with_the_numbers(tmp_path: Path) -> None:
    (warning,) = asked(tmp_path, "--size", "64").warnings
    assert "2 ranks will need about" in warning
    assert "are free here" in warning


def test_a_checkpoint_larger_than_the_disk_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"One checkpoint takes about .* --store"):
        asked(tmp_path, "--size", "300", "--layers", "300", "--checkpoint-every", "5")


def test_many_checkpoints_are_counted(tmp_path: Path) -> None:
    steps = ("--steps", "90000000", "--checkpoint-every", "1")
    (warning,) = asked(tmp_path, *steps).warnings
    assert warning.startswith("90000000 checkpoints of about")


def test_room_is_looked_for_where_the_checkpoints_will_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the run's directory, not below the working directory, unless a folder is asked for."""
    saving = ("--steps", "9", "--checkpoint-every", "1")
    store = tmp_path / "store"
    for folder in (store, tmp_path / "own"):
        folder.mkdir()
    monkeypatch.chdir(tmp_path)
    requests = [asked(store, *saving), asked(store, *saving, "--checkpoint-dir=own/a")]
    places = list[Path]()
    monkeypatch.setattr(preflight_warnings, "disk_free", places.append)
    for request in requests:
        assert not list(preflight_warnings._disk(request))
    assert places == [store, tmp_path / "own"]


@pytest.mark.parametrize(
    ("kept", "at_once"),
    [
        (["--keep-last", "2"], 3),
        (["--keep-last", "1", "--keep-best", "3"], 5),
        (["--keep-best", "1"], 3),
    ],
)
def test_only_the_checkpoints_that_stay_take_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: list[str], at_once: int
) -> None:
    request = asked(tmp_path, "--steps", "2000000000", "--checkpoint-every", "100", *kept)
    assert not [one for one in request.warnings if "checkpoints of about" in one]
    size = preflight_warnings._checkpoint_bytes(request)
    monkeypatch.setattr(preflight_warnings, "disk_free", lambda _: at_once * size)
    assert not list(preflight_warnings._disk(request))
    monkeypatch.setattr(preflight_warnings, "disk_free", lambda _: at_once * size - 1)
    (warning,) = preflight_warnings._disk(request)
    assert warning.startswith(f"{at_once} checkpoints of about")


@pytest.mark.parametrize("price", ["nan", "inf", "-3", "2,5", "$2.50"])
def test_a_price_that_is_none_is_shown_and_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, price: str
) -> None:
    monkeypatch.setenv("WORKBENCH_USD_PER_HOUR", price)
    assert wb.detect_host().usd_per_hour is None  # who asks for the GPUs alone gets them
    for recovery in (Recovery(), Recovery(max_usd=1)):
        with pytest.raises(UsageError, match=f"WORKBENCH_USD_PER_HOUR is '{re.escape(price)}'"):
            asked(tmp_path, "--steps", "5", recovery=recovery)
    check = doctor._check_price()
    assert not check["ok"]
    assert price in check["found"]
    monkeypatch.setenv("WORKBENCH_USD_PER_HOUR", "2.5")
    assert asked(tmp_path, "--steps", "5").usd_per_hour == 2.5
    assert doctor._check_price()["found"] == "$2.50 an hour"


@pytest.mark.parametrize("price", [None, math.nan, math.inf, -3.0])
def test_dollars_are_not_limited_by_a_price_that_is_none(price: float | None) -> None:
    with pytest.raises(UsageError, match="--max-usd 1 needs the price"):
        check_limits_known(Recovery(max_usd=1), price, "cpu", {})


def test_a_missing_package_comes_with_its_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = importlib.util.find_spec

    def without_deepspeed(name: str, package: str | None = None) -> Any:
        return None if name == "deepspeed" else there(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without_deepspeed)
    with pytest.raises(HostError, match=re.escape(f"{sys.executable} -m pip install deepspeed")):
        asked(tmp_path, strategy="zero2")


def test_a_full_card_names_the_switches_that_make_it_fit(tmp_path: Path) -> None:
    request = asked(tmp_path, "--size", "40", "--seq-len", "1024", strategy="fsdp")
    (warning,) = preflight.checked(on_gpus(request, "t4", 2)).warnings
    assert "of a card of" in warning
    assert "It would fit with: " in warning


@pytest.mark.parametrize(
    ("gpu", "precision"),
    [("t4", "bf16"), ("v100-sxm2-16", "bf16"), ("t4", "fp16"), ("h100", "bf16"), ("a100", "fp8")],
)
def test_a_format_that_the_card_lacks_is_refused_as_plan_and_cost_do(
    tmp_path: Path, gpu: str, precision: str
) -> None:
    request = on_gpus(asked(tmp_path, "--precision", "bf16"), gpu, 2)
    assert request.workload is not None
    workload = replace(request.workload, precision=precision)
    request = replace(request, workload=workload, precision=precision)
    lacking = request.cluster.accelerator.why_not(precision)
    for known in (workload, None):  # a recipe's precision is known without its workload too
        if lacking:
            with pytest.raises(UsageError) as refusal:
                preflight.checked(replace(request, workload=known))
            assert str(refusal.value) == lacking
        else:
            preflight.checked(replace(request, workload=known))


def test_fp8_on_a_cpu_is_said_to_be_emulated(tmp_path: Path) -> None:
    pytest.importorskip("torchao", reason="pip install 'training-workbench[lowbit]'")
    (warning,) = preflight.checked(asked(tmp_path, "--precision", "fp8")).warnings
    assert "emulated" in warning


def test_whoever_holds_a_gpu_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = GpuHolder(
        index=1, memory_bytes=20 << 30, total_bytes=24 << 30, processes=((42, "python"),)
    )
    monkeypatch.setattr(preflight_warnings, "gpu_holders", lambda gpus: [holder])
    (warning,) = preflight.checked(on_gpus(asked(tmp_path), "rtx-4090", 2)).warnings
    assert warning.startswith("GPU 1: 20 GiB are held by python (pid 42); 4 GiB are free.")


@pytest.mark.parametrize(
    ("processes", "said"),
    [
        ((), "20 GiB are in use by an unknown holder"),
        (((42, None),), "20 GiB are in use by an unknown holder"),
        (((7, "python"), (42, None)), "held by python (pid 7) and by others outside this"),
    ],
)
def test_a_holder_that_the_driver_does_not_name_is_unknown(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    processes: tuple[tuple[int, str | None], ...],
    said: str,
) -> None:
    holder = GpuHolder(index=1, memory_bytes=20 << 30, total_bytes=24 << 30, processes=processes)
    monkeypatch.setattr(preflight_warnings, "gpu_holders", lambda gpus: [holder])
    (warning,) = preflight.checked(on_gpus(asked(tmp_path), "rtx-4090", 2)).warnings
    assert said in warning
    assert "4 GiB are free" in warning
    assert "pid 42" not in warning  # a number of the host's: here it is another program's


def test_warnings_stay_with_the_run(tmp_path: Path) -> None:
    steps = ("--steps", "1", "--layers", "1", "--eval-every", "0", "--checkpoint-every", "90")
    request = replace(asked(tmp_path, *steps, processes=1), warnings=("little disk",))
    run = wb.start(request)
    run.stop(now=True)
    assert run.document["warnings"] == ["little disk"]


@pytest.mark.parametrize(
    ("recipe", "options", "said"),
    [
        ("pipeline", {"strategy": "fsdp", "processes": 2}, "spreads by pp and nothing else"),
        ("tensor_parallel", {"strategy": "dp2-tp2"}, "spreads by tp and nothing else"),
        ("deepspeed_pipeline", {"strategy": "pp2-fsdp2"}, "spreads by pp and nothing else"),
        ("vision", {"arguments": ["--precision", "fp16"]}, "trains in fp32 when it is asked"),
        (
            "gpt",
            {"arguments": ["--precision", "fp8"], "strategy": "zero2"},
            "in fp8 is not launched",
        ),
        (
            "gpt",
            {
                "arguments": ["--precision", "fp8"],
                "strategy": "fsdp",
                "options": {"meta_init": True},
            },
            "Leave meta init out",
        ),
        ("gpt", {"arguments": ["--tp", "2"]}, "is said by the strategy"),
        ("gpt", {"arguments": ["--schedule=gpipe"], "strategy": "pp2"}, "is said by the strategy"),
        ("gpt", {"arguments": ["--optimizer", "muon"], "strategy": "zero2"}, "whole matrices"),
        ("gpt", {"arguments": ["--optimizer", "adamw-8bit"], "strategy": "fsdp"}, "bitsandbytes"),
    ],
)
def test_what_would_not_be_what_runs_is_refused(
    tmp_path: Path, recipe: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        wb.request(recipe, cpu=True, store=tmp_path, **options)


def test_recipes_of_one_idea_are_started_by_it(tmp_path: Path) -> None:
    assert wb.request("pipeline", cpu=True, store=tmp_path).strategy.pp == 2
    assert wb.request("tensor_parallel", cpu=True, processes=1, store=tmp_path).processes == 1
    both = wb.request("deepspeed_pipeline", cpu=True, strategy="pp2-dp2", store=tmp_path)
    assert both.processes == 4


def test_tensorflow_spreads_itself(tmp_path: Path) -> None:
    script = tmp_path / "mirrored.py"
    script.write_text("import tensorflow as tf\n")
    assert wb.request(script, cpu=True, store=tmp_path).strategy.name == "single"
    with pytest.raises(UsageError, match="Use --strategy single"):
        wb.request(script, cpu=True, strategy="ddp", processes=2, store=tmp_path)


def test_several_machines_get_the_next_port_when_the_usual_one_is_taken(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # someone else has it: that will do, too
            other.bind(("", preflight.USUAL_PORT))
            other.listen()
        two = asked(tmp_path, processes=1, nodes=2, address="127.0.0.1")
        assert preflight.USUAL_PORT < two.options.port < preflight.USUAL_PORT + 100
        with pytest.raises(UsageError, match="cannot be used for the ranks' rendezvous"):
            asked(tmp_path, processes=1, nodes=2, address="127.0.0.1", port=preflight.USUAL_PORT)


def torch_built_for(monkeypatch: pytest.MonkeyPatch, folder: Path, built: str) -> None:
    """A torch as far as its files tell what it was built for."""
    (folder / "version.py").write_text(
        f"cuda: Optional[str] = {built}\nhip: Optional[str] = None\n"
    )
    real = importlib.util.find_spec
    spec = SimpleNamespace(origin=str(folder / "__init__.py"))
    monkeypatch.setattr(
        preflight.importlib.util, "find_spec", lambda name: spec if name == "torch" else real(name)
    )


@pytest.mark.parametrize(
    ("driver", "built", "refused"),
    [
        (12080, "None", "torch is built for the CPU.*cu126"),
        (
            12080,
            "'13.0'",
            "torch is built for CUDA 13, and this host has a driver that can do CUDA 12",
        ),
        (12020, "'12.8'", None),
        (13000, "'12.8'", None),
    ],
)
def test_a_torch_that_cannot_use_the_gpus_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    put: Callable[[Pod], Placed],
    driver: int,
    built: str,
    refused: str | None,
) -> None:
    request = on_gpus(asked(tmp_path, "--steps", "5"), "h100", 2)
    put(Pod("h100-sxm", 2, cuda=driver))
    torch_built_for(monkeypatch, tmp_path, built)
    if refused is None:
        assert preflight.checked(request).device == "cuda"
    else:
        with pytest.raises(HostError, match=refused):
            preflight.checked(request)


def test_gpus_that_are_hot_faulty_or_lost_are_told_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put: Callable[[Pod], Placed]
) -> None:
    request = on_gpus(asked(tmp_path, "--steps", "5"), "h100", 2)
    torch_built_for(monkeypatch, tmp_path, "'12.8'")
    pod = put(
        Pod("h100-sxm", 3).at(10, 0, throttle=0x40, temperature=94).at(10, 1, ecc=3).lost(20, 2)
    )
    request = replace(request, options=replace(request.options, cpu=False))
    assert preflight.checked(request).warnings == ()
    pod.second = 10
    hot, faulty = preflight.checked(request).warnings
    assert "GPU 0 is slowed down already (heat) at 94 °C" in hot
    assert "GPU 1 has counted 3 uncorrectable memory errors" in faulty
    pod.second = 20
    assert "GPU 2: GPU is lost" in preflight.checked(request).warnings[-1]


def test_the_gpus_are_chosen_before_they_are_counted(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="so set it before"):
        asked(tmp_path, environment={"CUDA_VISIBLE_DEVICES": "2,3"})


@pytest.mark.parametrize(
    "name",
    ["ACCELERATE_USE_FSDP", "FSDP_VERSION", "PARALLELISM_CONFIG_TP_SIZE", "ACCELERATE_USE_CPU"],
)
def test_the_strategy_alone_decides_how_ranks_are_spread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with pytest.raises(UsageError, match=f"{name}: how ranks are spread"):
        asked(tmp_path, environment={name: "true"})
    monkeypatch.setenv(name, "true")
    request = asked(tmp_path, environment={"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "2"})
    assert any(warning.endswith(f"not set for them: {name}.") for warning in request.warnings)
    assert f"&& env -u {name} " in request.shell()
    assert name not in inherited()


def test_options_leave_the_layout_that_the_name_says(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="zero_stage=1 is not what the strategy 'zero2' means"):
        asked(tmp_path, strategy="zero2", options={"zero_stage": 1})
    with pytest.raises(UsageError, match="dp_shard=2 is not"):
        asked(tmp_path, strategy="ddp", options={"dp_shard": 2})


@pytest.mark.parametrize("store", ["x" * 300, 1, b"x", "a\0b", "y/" * 3000])
def test_a_store_that_no_folder_can_be_is_refused(store: Any) -> None:
    with pytest.raises(UsageError, match=r"^The store (must be|has) "):
        wb.request("gpt", cpu=True, store=store)


def test_a_lone_rank_is_shown_one_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    two = on_gpus(asked(tmp_path), "h100", 2)
    assert "CUDA_VISIBLE_DEVICES=3,1 " in two.shell()
    one = on_gpus(asked(tmp_path, processes=1), "h100", 2)
    assert "CUDA_VISIBLE_DEVICES=3 " in one.shell()
    spread = tmp_path / "spread.py"
    spread.write_text("model = load(device_map='auto')\n")
    assert "CUDA_VISIBLE_DEVICES=3,1 " in replace(one, script=spread, recipe=None).shell()


def test_a_run_takes_the_gpus_that_nobody_uses(
    tmp_path: Path, put: Callable[[Pod], Placed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless it names its own, or needs them all; a display's memory is no one's training."""
    monkeypatch.setattr(preflight, "_check_cuda", lambda _request: None)
    pod = Pod("a100-sxm-80", 4)
    for device, used in ((0, 60 << 30), (1, 200 << 20), (2, 9 << 30)):
        pod.processes(0, device, {os.getpid(): used})
    put(pod)
    store = tmp_path / "runs"

    def gpus(count: int, **options: Any) -> tuple[tuple[str, ...], list[int]]:
        request = wb.request("gpt", ["--steps", "1"], processes=count, store=store, **options)
        return request.options.devices, [gpu.index for gpu in request.cluster.gpus]

    assert gpus(2) == (("1", "3"), [1, 3])
    assert gpus(1)[0] == ("1",)
    assert gpus(3)[0] == ("0", "1", "3")
    assert gpus(4) == ((), [0, 1, 2, 3])
    assert gpus(2, devices=("0", "2"))[0] == ("0", "2")
    assert gpus(2, share=True)[0] == ()
    warnings = wb.request("gpt", ["--steps", "1"], processes=2, store=store).warnings
    assert not any("are held by" in one for one in warnings)

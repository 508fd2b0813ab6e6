"""Looks at this host before any process starts: what would fail is refused, what may fail is said.

A refusal is an error with the one thing that helps. A warning goes with the request: into the
launch form, on the terminal and into run.json.
"""

from __future__ import annotations

import importlib.util
import socket
from dataclasses import asdict, replace

from workbench import recipes
from workbench.describe.bounded_calls import driver_silence
from workbench.describe.supported import backend, why_not, why_not_fp8
from workbench.describe.torch_build import why_no_cuda
from workbench.errors import HostError, UsageError, pip_install
from workbench.launching.prepare.deepspeed_batches import check_batches
from workbench.launching.prepare.limits import check_limits_known
from workbench.launching.prepare.own_decisions import check_own_decisions
from workbench.launching.prepare.preflight_warnings import warnings
from workbench.launching.prepare.request import Request


def checked(request: Request) -> Request:
    """The request with its warnings.

    Raises:
        UsageError: the port is taken, the disk cannot hold one checkpoint, the GPU lacks the
            number format, or the batches of a DeepSpeed file do not multiply.
        HostError: a package that the strategy needs is missing.
    """
    _check_cuda(request)
    _check_precision(request)
    _check_packages(request)
    _check_port(request.options.port)
    _check_optimizer(request)
    check_own_decisions(
        request.options.recovery,
        capture=request.options.capture,
        nodes=request.nodes,
        recipe=request.recipe,
        script=request.script,
        arguments=request.arguments,
    )
    check_batches(request.arguments, request.working_directory, request.strategy.data_ranks)
    _check_limits(request)
    return replace(request, warnings=tuple(warnings(request)))


def refuse_silent_driver() -> None:
    """Without an answer of the driver a run would silently train on the CPU.

    Raises:
        HostError: the driver hangs.
    """
    if driver_silence():
        raise HostError(f"{driver_silence()} Or train on the CPU with --cpu.")


def _check_cuda(request: Request) -> None:
    why = why_no_cuda() if request.device == "cuda" else None
    if why is not None:
        raise HostError(f"{why} Or train on the CPU with --cpu.")


def _check_limits(request: Request) -> None:
    if request.options.cluster is None:  # an engine's machines tell when they are there
        recovery, cluster = request.options.recovery, asdict(request.cluster)
        check_limits_known(recovery, request.usd_per_hour, request.device, cluster)


def _check_packages(request: Request) -> None:
    strategy = request.strategy
    if backend(strategy, request.splits) == "deepspeed" and _lacks("deepspeed"):
        raise HostError(
            f"{strategy.name} is DeepSpeed's, and deepspeed is not installed here. Install it "
            f"with: {pip_install('deepspeed')}. Or use {_without_deepspeed(request)}; they need "
            "nothing."
        )
    needs = () if request.recipe is None else recipes.find(request.recipe).needs
    quantized = request.workload is not None and request.workload.quantization != "none"
    if quantized or request.optimizer == "adamw-8bit":
        needs = (*needs, "bitsandbytes")
    if request.recipe is not None and request.precision == "fp8":
        needs = (*needs, "torchao")
    missing = [name for name in needs if _lacks(name)]
    if missing:
        raise HostError(
            f"{request.script.name} with these arguments needs {' and '.join(missing)}, not "
            f"installed here. Install with: {pip_install(*missing)}"
        )


def _without_deepspeed(request: Request) -> str:
    if not why_not(request.strategy.with_options(engine="torch"), splits=request.splits):
        return "zero1 --engine torch, or fsdp (= ZeRO-3)"
    return "fsdp (= ZeRO-3) or fsdp-grad-op (= ZeRO-2)"


def _lacks(package: str) -> bool:
    return importlib.util.find_spec(package) is None


def _check_precision(request: Request) -> None:
    """Refuse a number format that the GPU has no units for: the sentence of plan and cost."""
    workload, accelerator = request.workload, request.cluster.accelerator
    precision = request.precision if workload is None else workload.precision
    if request.device == "cuda" and accelerator is not None and precision not in {None, "fp32"}:
        lacking = accelerator.why_not(str(precision))
        if lacking:
            raise UsageError(lacking)
    if request.recipe is not None and request.precision == "fp8":
        reason = why_not_fp8(request.strategy)
        if reason:
            raise UsageError(reason)
    if request.device != "cpu" or request.precision != "fp16":
        return
    backend_name = backend(request.strategy, request.splits)
    if backend_name not in {"fsdp", "deepspeed"}:
        raise UsageError(
            "On a CPU Accelerate trains in fp32 when it is asked for fp16. Use --precision bf16 or "
            "fp32 here; fp16 needs a GPU."
        )
    if backend_name == "deepspeed":
        raise UsageError(
            "DeepSpeed says of most processors 'Type fp16 is not supported on your device'. Use "
            "--precision bf16 or fp32 here."
        )


def _check_optimizer(request: Request) -> None:
    deepspeed = backend(request.strategy, request.splits) == "deepspeed"
    flat = deepspeed or request.strategy.engine == "fsdp1"
    if flat and request.optimizer in {"muon", "adafactor"}:
        raise UsageError(
            f"The optimizer {request.optimizer} works on whole matrices, and "
            f"{request.strategy.name} cuts them into flat pieces. Use fsdp (FSDP2), or "
            "--optimizer adamw-fused."
        )
    if (
        deepspeed
        and request.device == "cuda"
        and "optimizer" in request.strategy.offload
        and request.optimizer not in {None, "adamw", "adamw-fused"}
    ):
        raise UsageError(
            "With offloaded optimizer states DeepSpeed trains with its CPU Adam instead of "
            f"{request.optimizer}. Use --optimizer adamw-fused, or leave the offload out."
        )
    if request.optimizer == "adamw-8bit" and request.strategy.dp_shard > 1 and not flat:
        raise UsageError(
            "bitsandbytes' 8-bit AdamW does not know FSDP2's sharded tensors. Use ddp, or "
            "--optimizer adamw-fused, whose states FSDP shards."
        )


USUAL_PORT = 29_500


def _check_port(port: int) -> None:
    if not 0 <= port <= 65_535:
        raise UsageError(f"The port must be between 0 (a free one) and 65535, not {port}.")
    if port == 0:
        return
    problem = _listen_problem(port)
    if problem is not None:
        raise UsageError(
            f"Port {port} cannot be used for the ranks' rendezvous: {problem}. "
            "Leave --port out (a free one is taken), or name another."
        )


def _listen_problem(port: int) -> str | None:
    """Why `port` cannot be listened at; None = it can."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return error.strerror or str(error)
    return None


def usual_port() -> int:
    """What other machines are told where no port was asked for: torch's, or the next free one."""
    free = (port for port in range(USUAL_PORT, USUAL_PORT + 100) if _listen_problem(port) is None)
    return next(free, USUAL_PORT)

"""Looks at this host before any process starts: what would fail is refused, what may fail is said.

A refusal is an error with the one thing that helps. A warning goes with the request: into the
launch form, on the terminal and into run.json.
"""

from __future__ import annotations

import importlib.util
import re
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from workbench import recipes
from workbench.describe import Strategy
from workbench.describe.detection import nvml
from workbench.errors import HostError, UsageError
from workbench.estimate.stages import rank_elements, stages
from workbench.estimate.states import optimizer_bytes
from workbench.estimate.switching import switches_that_fit
from workbench.launch.dry_run import Request
from workbench.launch.supported import backend
from workbench.observe.gpu import GpuHolder, gpu_holders
from workbench.observe.host import disk_free, memory_available
from workbench.units import GIB, format_bytes

_HELD_BYTES = GIB  # less is a display or a driver, not somebody's training
_LITTLE_DISK = 2 * GIB


def checked(request: Request) -> Request:
    """The request with its warnings.

    Raises:
        UsageError: the port is taken, or the disk cannot hold one checkpoint.
        HostError: a package that the strategy needs is missing.
    """
    _check_cuda(request)
    _check_packages(request)
    _check_port(request.port)
    _check_precision(request)
    _check_optimizer(request)
    found = (
        *_own_script(request),
        *_restarts(request),
        *_memory(request),
        *_held(request),
        *_precision(request),
        *_disk(request),
    )
    return replace(request, warnings=tuple(found))


def _check_cuda(request: Request) -> None:
    """Ranks whose torch cannot use the GPU would train on the CPU, each by itself, without a word.

    torch is not loaded for that: its version file tells what it was built for.
    """
    library, spec = nvml(), importlib.util.find_spec("torch")
    if request.device != "cuda" or library is None or spec is None or spec.origin is None:
        return
    try:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
        driver = int(library.nvmlSystemGetCudaDriverVersion()) // 1000
    except (OSError, library.NVMLError):
        return
    built = re.search(r"^cuda\b[^=\n]*=\s*'(\d+)", text, re.MULTILINE)
    if built is not None and int(built[1]) <= driver:
        return
    what = "the CPU" if built is None else f"CUDA {built[1]}"
    raise HostError(
        f"torch is built for {what}, and this host's driver can do CUDA {driver}: no rank could "
        "use its GPU. Install a torch that fits (in the repository: "
        f"WORKBENCH_TORCH_INDEX=https://download.pytorch.org/whl/{_wheels(driver)} make demo), or "
        "train on the CPU with --cpu."
    )


def _wheels(driver: int) -> str:
    """Folder of torch's builds that any driver of that CUDA generation can run.

    >>> [_wheels(one) for one in (11, 12, 13)]
    ['cu118', 'cu126', 'cu130']
    """
    return {11: "cu118", 12: "cu126"}.get(driver, "cu130")


def _restarts(request: Request) -> Iterator[str]:
    """A recipe that saves nothing begins anew each time it is started again."""
    flags = ("--checkpoint-every", "--checkpoint-minutes", "--checkpoint-auto")
    saves = any(word.startswith(flags) for word in request.arguments)
    if request.recipe is not None and request.recovery.restarts and not saves:
        yield (
            f"{request.recovery.restarts} restarts are allowed, but the recipe saves no "
            "checkpoint, so each would begin anew. Add --checkpoint-minutes 5 to its arguments."
        )


def _check_packages(request: Request) -> None:
    strategy = request.strategy
    if backend(strategy, request.splits) == "deepspeed" and _lacks("deepspeed"):
        raise HostError(
            f"{strategy.name} is DeepSpeed's, and deepspeed is not installed here. Install it "
            "with: pip install deepspeed. Or use fsdp (= ZeRO-3) or "
            "fsdp-grad-op (= ZeRO-2), which need nothing."
        )
    needs = () if request.recipe is None else recipes.find(request.recipe).needs
    quantized = request.workload is not None and request.workload.quantization != "none"
    if quantized or request.optimizer == "adamw-8bit":
        needs = (*needs, "bitsandbytes")
    missing = [name for name in needs if _lacks(name)]
    if missing:
        raise HostError(
            f"{request.script.name} with these arguments needs {' and '.join(missing)}, not "
            f"installed here. Install with: pip install {' '.join(missing)}"
        )


def _lacks(package: str) -> bool:
    return importlib.util.find_spec(package) is None


def _check_precision(request: Request) -> None:
    if request.device != "cpu" or request.precision != "fp16":
        return
    who = backend(request.strategy, request.splits)
    if who not in {"fsdp", "deepspeed"}:
        raise UsageError(
            "On a CPU Accelerate trains in fp32 when it is asked for fp16. Use --precision bf16 or "
            "fp32 here; fp16 needs a GPU."
        )
    if who == "deepspeed":
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
    problem = _taken(port)
    if problem is not None:
        raise UsageError(
            f"Port {port} cannot be used for the ranks' rendezvous: {problem}. "
            "Leave --port out (a free one is taken), or name another."
        )


def _taken(port: int) -> str | None:
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
    free = (port for port in range(USUAL_PORT, USUAL_PORT + 100) if _taken(port) is None)
    return next(free, USUAL_PORT)


def _memory(request: Request) -> Iterator[str]:
    """The prediction against the card, or the ranks together against the host."""
    predicted, workload = request.predicted, request.workload
    if predicted is None or workload is None:
        return
    if request.device == "cpu":
        needed, free = predicted.total_bytes * request.processes, memory_available()
        if needed > free:
            yield (
                f"{request.processes} ranks will need about {format_bytes(needed)} of memory; "
                f"{format_bytes(free)} are free here. Use fewer ranks or a smaller model."
            )
    elif predicted.fits is False:
        card = predicted.card_bytes or 0
        yield (
            f"Each rank is predicted to need {format_bytes(predicted.on_card_bytes)} of a card of "
            f"{format_bytes(card)}. {_what_helps(request)}"
        )


def _own_script(request: Request) -> Iterator[str]:
    """Model parallelism is the script's own work, and nobody can see from outside that it does."""
    strategy = request.strategy
    axes = [axis for axis in ("tp", "cp", "pp") if getattr(strategy, axis) > 1]
    if request.recipe is None and axes:
        yield (
            f"{request.script.name} has to split its model by {' and '.join(axes)} itself: a "
            f"script that does not trains as plain data parallelism under the name "
            f"{strategy.name!r}, or fails in prepare(). The recipes show how; ddp, fsdp and zero1 "
            "to zero3 need nothing of the script."
        )


def _what_helps(request: Request) -> str:
    assert request.workload is not None
    chosen = switches_that_fit(request.workload, request.strategy, request.cluster)
    if not chosen:
        return "No combination of switches makes it fit: use more GPUs or a smaller model."
    return f"It would fit with: {', '.join(switch.name for switch in chosen)}."


def _held(request: Request) -> Iterator[str]:
    """GPUs of the run on which somebody else's memory lies."""
    if request.device == "cpu":
        return
    for holder in gpu_holders(request.cluster.gpus[: request.processes]):
        if holder.memory_bytes >= _HELD_BYTES:
            yield _held_sentence(holder, request)


def _held_sentence(holder: GpuHolder, request: Request) -> str:
    who = ", ".join(f"{name} (pid {pid})" for pid, name in holder.processes)
    free = holder.total_bytes - holder.memory_bytes
    text = (
        f"GPU {holder.index}: {format_bytes(holder.memory_bytes)} are held by "
        f"{who or 'a process of another container'}; {format_bytes(free)} are free."
    )
    if request.predicted is not None and request.predicted.total_bytes > free:
        return f"{text} This run needs {format_bytes(request.predicted.total_bytes)}: end it first."
    return text


def _precision(request: Request) -> Iterator[str]:
    """Number formats that the card has no units for."""
    if request.workload is None or request.device == "cpu":
        return
    precision, accelerator = request.workload.precision, request.cluster.accelerator
    if accelerator is None or precision == "fp32":
        return
    if accelerator.peak_flops(precision) is None:
        instead = "fp16" if precision.startswith("bf16") else "bf16"
        yield (
            f"{accelerator.name} has no {precision} units: it will run slowly or not at all. "
            f"Use --precision {instead}."
        )


def _disk(request: Request) -> Iterator[str]:
    """Room for checkpoints where the run will write."""
    folder = _existing(request.checkpoint_folder or request.store.root)
    free = disk_free(folder)
    if free is None:
        return
    model = request.workload.model if request.workload is not None else None
    every = request.checkpoint_every
    if model is None or not every:
        if free < _LITTLE_DISK:
            yield f"Only {format_bytes(free)} of disk are free below {folder}."
        return
    one = _checkpoint_bytes(request)
    if one > free:
        raise UsageError(
            f"One checkpoint takes about {format_bytes(one)}, but {format_bytes(free)} are free "
            f"below {folder}. Free some, use --store on a larger disk, or --checkpoint-every 0."
        )
    count = (request.steps_total or 0) // every
    if count * one > free:
        yield (
            f"{count} checkpoints of about {format_bytes(one)} are planned; {format_bytes(free)} "
            f"are free below {folder}. Checkpoint less often, or use a larger disk."
        )


def _checkpoint_bytes(request: Request) -> int:
    """fp32 weights and the optimizer's states; of LoRA the adapters', and the base under FSDP."""
    workload = request.workload
    assert workload is not None
    whole = workload.model.parameters
    states = optimizer_bytes(workload.optimizer)
    if not workload.lora_rank:
        return round(whole * (4 + states))
    single = stages(workload.model, Strategy(name="single"), 1)[0]
    adapters = rank_elements(workload, Strategy(name="single"), single).adapters
    base = 4 * whole if request.strategy.dp_shard > 1 else 0
    return round(adapters * (4 + states)) + base


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there already."""
    return next((one for one in (folder, *folder.parents) if one.is_dir()), Path("/"))

"""One request from value to numbers: build, lay out, run under the tracker, replay its trace."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false, reportPrivateUsage=false, reportMissingImports=false

from __future__ import annotations

import gc
import time
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from workbench.describe import Strategy, Workload
from workbench.estimate.simulation import layouts
from workbench.estimate.simulation.allocator import replay, smallest_card
from workbench.estimate.simulation.build import blocks_of, build
from workbench.estimate.simulation.patches import apply_patches
from workbench.estimate.simulation.quantized import quantize
from workbench.estimate.simulation.recompute import apply_recompute, offload_activations
from workbench.estimate.simulation.step import Report, Stage, Training, watch_loss_backward
from workbench.estimate.simulation.support import refuse_unsupported, uses_autocast
from workbench.estimate.simulation.trace import Trace, peak, timeline
from workbench.estimate.simulation.tracker import Tracker


def run_workload(
    workload: Workload, strategy: Strategy, *, steps: int, report: Report
) -> dict[str, Any]:
    """Simulate every pipeline stage and return the fullest one's document, all stages in it.

    Raises:
        CannotSimulateError: something asked for is not built here.
    """
    began = time.perf_counter()
    refuse_unsupported(workload, strategy)
    notes = apply_patches()
    stages = [Stage(index=index, count=strategy.pp) for index in range(strategy.pp)]
    documents: list[tuple[int, dict[str, Any]]] = []
    for stage in stages:
        report(stage.index / len(stages), f"stage {stage.index + 1} of {len(stages)}")
        layers = stage_layers(workload.model.layers, stage)
        trace = run_stage(workload, strategy, stage, layers=layers, steps=steps, report=report)
        report((stage.index + 0.8) / len(stages), "replaying the allocator")
        documents.append((layers, analyse(trace)))
    fullest = max((document for _, document in documents), key=lambda each: each["allocated_bytes"])
    per_stage = [
        {
            "stage": index,
            "layers": layers,
            **{key: document[key] for key in _STAGE_KEYS},
        }
        for index, (layers, document) in enumerate(documents)
    ]
    return fullest | {
        "per_stage": per_stage if strategy.pp > 1 else [],
        "seconds": time.perf_counter() - began,
        "assumptions": [*notes, *_assumptions(workload, strategy)],
        "versions": versions(),
    }


_STAGE_KEYS = ("allocated_bytes", "reserved_bytes", "smallest_card_bytes", "peak", "parts")


def stage_layers(layers: int, stage: Stage) -> int:
    """Blocks of one stage: as even as possible, the first stages take what is left over."""
    share, rest = divmod(layers, stage.count)
    return share + (stage.index < rest)


def run_stage(
    workload: Workload,
    strategy: Strategy,
    stage: Stage,
    *,
    layers: int,
    steps: int,
    report: Report,
) -> Trace:
    """Run the training steps of one stage on fake tensors and return what was seen."""
    ranks = strategy.world_size // strategy.pp
    if ranks > 1:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        trainee = _lay_out(workload, strategy, stage, layers)
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        with fake:
            layouts.materialise(trainee)
            return _run(trainee, workload, strategy, stage, fake, steps, report)
    finally:
        if ranks > 1:
            dist.destroy_process_group()


def _lay_out(workload: Workload, strategy: Strategy, stage: Stage, layers: int) -> Any:
    trainee = build(workload, layers=layers, first=stage.first, last=stage.last)
    layouts.set_precision(trainee, workload)
    layouts.freeze(trainee, workload, first=stage.first)
    layouts.add_adapters(trainee, workload)
    quantize(trainee, workload, blocks_of(trainee))
    mesh = layouts.device_mesh(strategy)
    if strategy.tp > 1 and mesh is not None:
        layouts.split_tensors(trainee, strategy, mesh["tensor"])
    apply_recompute(trainee, strategy)
    offload_activations(trainee, strategy)
    if strategy.dp_shard > 1 and mesh is not None:
        layouts.shard(trainee, workload, strategy, mesh)
    return trainee


def _run(
    trainee: Any,
    workload: Workload,
    strategy: Strategy,
    stage: Stage,
    fake: Any,
    steps: int,
    report: Report,
) -> Trace:
    tracker = Tracker(fake)
    watch_loss_backward(trainee, tracker)
    gc.collect()
    gc.disable()
    try:
        with tracker:
            training = Training(trainee, workload, strategy, tracker, stage)
            for index in range(steps):
                training.step()
                gc.collect(1)
                done = (stage.index + 0.8 * (index + 1) / steps) / stage.count
                report(done, f"step {index + 1} of {steps}")
    finally:
        gc.enable()
        tracker.close()
    return tracker.trace


def analyse(trace: Trace) -> dict[str, Any]:
    """Peak, parts, timeline and the allocator's replays of one trace, as plain JSON."""
    top = peak(trace)
    requests = trace.requests()
    reserved = replay(requests).peak_reserved
    return {
        "allocated_bytes": top.total,
        "reserved_bytes": reserved,
        "reserved_expandable_bytes": replay(requests, expandable=True).peak_reserved,
        "smallest_card_bytes": smallest_card(requests, top.total, reserved),
        "parts": top.parts,
        "peak": top.phase,
        "peak_event": top.event,
        "timeline": [[index, parts] for index, parts in timeline(trace)],
        "phases": [[index, name] for index, name in trace.phases],
    }


def versions() -> dict[str, str]:
    """Versions of what was simulated with."""
    import transformers  # noqa: PLC0415  (a step function may do without)

    return {"torch": str(torch.__version__), "transformers": transformers.__version__}


def _assumptions(workload: Workload, strategy: Strategy) -> list[str]:
    model = workload.model
    sentences = {
        "buffers inside kernels, cuBLAS workspaces, NCCL and the CUDA context are not in it": True,
        "DDP's reducer does not run on fake tensors: its buckets are allocated by us": (
            strategy.dp_replicate > 1 and strategy.dp_shard == 1
        ),
        "gradients are not clipped (meshes differ); the loss is split over the vocabulary": (
            strategy.tp > 1
        ),
        "activations from other stages are received into fresh buffers": strategy.pp > 1,
        "CUDA's autocast lists are emulated on CPU": uses_autocast(workload, strategy),
        "GELU is one kernel (gelu_pytorch_tanh), not GPT-2's gelu_new in nine": (
            model.position == "learned" and model.kind == "decoder"
        ),
        "4-bit linears turn their matrix back in forward and in backward (bitsandbytes); kernels "
        "that read the packed weights themselves need less": workload.quantization != "none",
        "paged states lie in unified memory, outside of the allocator": (
            workload.optimizer.startswith("paged-")
        ),
        "every batch has the full length": workload.variable_length,
        "no auxiliary loss of the router; tokens meet the experts in one grouped matmul": bool(
            model.experts
        ),
        "attention dropout stays inside the kernel: no mask is kept for it": bool(model.dropout),
    }
    return [sentence for sentence, applies in sentences.items() if applies]

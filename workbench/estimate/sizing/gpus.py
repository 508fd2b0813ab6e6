"""Which card, and how many: one GPU with a switch comes before many GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from workbench.describe import Accelerator, Cluster, Strategy, Workload
from workbench.describe.accelerators import find
from workbench.describe.job import Job
from workbench.describe.job_function import as_job
from workbench.describe.option import declared, several
from workbench.describe.supported import ignored
from workbench.errors import UnknownNameError, UsageError
from workbench.estimate.memory import training_memory
from workbench.estimate.parts import Estimate
from workbench.estimate.sizing.limits import HEADROOM, leaves_headroom
from workbench.estimate.sizing.switch import HOST, RESULT, Switch, switches, switches_that_fit
from workbench.units import format_bytes

VENDORS = frozenset({"NVIDIA", "AMD"})
"""Makers whose GPUs PyTorch's caching allocator runs on; the closed form describes that one."""
STRATEGIES = ("ddp", "zero1", "zero2", "fsdp", "zero3", "fsdp+tp")
"""What `fewest_gpus` tries beyond one GPU; fsdp+tp = tensor parallel within a node, FSDP across."""
MOST_GPUS, NODE = 1024, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFit:
    """A GPU on which it fits."""

    gpu: Accelerator
    """The catalog's row."""
    estimate: Estimate
    """Memory on it."""

    @property
    def free_bytes(self) -> int:
        """What stays free on each card."""
        return self.gpu.memory_bytes - self.estimate.on_card_bytes

    def __str__(self) -> str:
        size = format_bytes(self.gpu.memory_bytes)
        return f"{self.gpu.id}: {format_bytes(self.free_bytes)} of {size} free"

    __repr__ = __str__


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A number of GPUs on which it fits, and how."""

    nodes: int
    """Machines with up to 8 of them."""
    strategy: Strategy
    """How the work is spread."""
    workload: Workload
    """What is trained, switches included."""
    switches: tuple[str, ...] = ()
    """Switches that it needs; empty = as asked."""
    changes_result: bool = False
    """Whether one of them changes what training computes."""
    estimate: Estimate
    """Memory of the fullest rank."""

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.strategy.world_size

    @property
    def free_bytes(self) -> int:
        """What stays free on each card."""
        free = self.estimate.headroom_bytes
        assert free is not None, "every cluster here has a card"
        return free

    def __str__(self) -> str:
        how = " + ".join((self.strategy.name, *self.switches))
        count = "1 GPU" if self.gpus == 1 else f"{self.gpus} GPUs"
        return f"{count}, {how}: {format_bytes(self.free_bytes)} free on each"

    __repr__ = __str__

    def document(self) -> dict[str, object]:
        """Plain JSON form."""
        return {
            "gpus": self.gpus,
            "nodes": self.nodes,
            "strategy": self.strategy.name,
            "switches": list(self.switches),
            "changes_result": self.changes_result,
            "on_card_bytes": self.estimate.on_card_bytes,
            "free_bytes": self.free_bytes,
        }


def smallest_gpu(
    workload: Workload | Job,
    strategy: Strategy | None = None,
    candidates: Iterable[Accelerator | str] | None = None,
    headroom: float = HEADROOM,
) -> tuple[GpuFit, ...]:
    """GPUs on which it fits with `headroom`, the smallest memory first.

    Args:
        workload: What is trained; or a job, whose GPUs do not count.
        strategy: How it is spread; its world size is the number of GPUs. None = as the job has it.
        candidates: GPUs to try, or their names; None = those of the catalog by NVIDIA and AMD that
            compute in the workload's precision.
        headroom: Share of the card that stays free.

    Raises:
        UsageError: the layout is impossible, or there is none.
    """
    job = workload if isinstance(workload, Job) else None
    if isinstance(workload, Job):
        workload, strategy = workload.workload, strategy or workload.strategy
    if strategy is None:
        raise UsageError("smallest_gpu needs a strategy beside a workload, or a job.")
    fitting: list[GpuFit] = []
    named = _usual(workload) if candidates is None else several(candidates)
    for gpu in (find(name) if isinstance(name, str) else name for name in named):
        cluster = Cluster.rented(gpu, gpus=min(NODE, strategy.world_size))
        laid_out = workload if job is None else job.in_layout(strategy, gpu.arch)[0]
        estimate = training_memory(laid_out, strategy, cluster)
        if leaves_headroom(estimate, headroom):
            fitting.append(GpuFit(gpu=gpu, estimate=estimate))
    return tuple(sorted(fitting, key=lambda fit: (fit.gpu.memory_bytes, fit.gpu.id)))


def _usual(workload: Workload) -> Iterator[Accelerator]:
    from workbench.describe.catalog import gpus  # noqa: PLC0415  (reads a data file)

    for gpu in gpus():
        if gpu.vendor in VENDORS and gpu.peak_flops(workload.precision) is not None:
            yield gpu


def fewest_gpus(
    workload: Workload | Job,
    gpu: str | Accelerator | None = None,
    strategies: Sequence[str] = STRATEGIES,
    headroom: float = HEADROOM,
) -> tuple[Option, ...]:
    """Ways to make it fit: one GPU with switches first, then each strategy's first 2, 4 … 1024.

    Micro-batch and accumulation are per rank and stay, so the global batch grows with the ranks.
    The options beyond one GPU are as asked. Of a job its options count, where a layout reads them,
    and its GPU unless another is named; a trainer that was named decides the rest in each layout.

    Raises:
        UsageError: no GPU, an unknown GPU or strategy, or an impossible layout.
    """
    if isinstance(workload, Job):
        of_job = workload.cluster.accelerator if isinstance(workload.cluster, Cluster) else None
        gpu = gpu or of_job
    if gpu is None:
        raise UsageError("fewest_gpus needs a GPU, such as gpu='h100', or a job that names one.")
    job = as_job(workload, Strategy.parse("single", 1), Cluster.rented(gpu, gpus=1))
    on_one = list(_on_one(job, gpu, headroom))
    many = [
        option
        for name in several(strategies)
        if name != "single" and (option := _first_count(job, gpu, name, headroom)) is not None
    ]
    return (*on_one, *sorted(many, key=lambda option: option.gpus))


def _on_one(job: Job, gpu: str | Accelerator, headroom: float) -> Iterator[Option]:
    """As asked; else each switch that is enough, a combination, and what LoRA and 8 bits make."""
    single = on_one_gpu(job, gpu)
    plain = training_memory(single)
    if leaves_headroom(plain, headroom):
        yield Option(nodes=1, strategy=single.strategy, workload=single.workload, estimate=plain)
        return
    candidates = switches(single)
    enough = [switch for switch in candidates if leaves_headroom(switch.estimate, headroom)]
    for switch in sorted(
        enough, key=lambda switch: (not switch.usual, switch.tier, switch.on_card_bytes)
    ):
        yield _switched((switch,))
    if not any(switch.tier < RESULT for switch in enough):
        combination = switches_that_fit(single, headroom)
        if combination:
            yield _switched(combination)
    for switch in candidates:
        if switch.tier == RESULT and switch not in enough:
            more = switches_that_fit(switch.job, headroom)
            if more and all(other.tier < HOST for other in more):
                yield _switched((switch, *more))


def on_one_gpu(job: Job, gpu: str | Accelerator) -> Job:
    """The job on one GPU of a kind, with those of its options that are read there.

    Raises:
        UsageError: an unknown GPU.
    """
    return _laid_out(job, Strategy.parse("single", 1), Cluster.rented(gpu, gpus=1))


def _laid_out(job: Job, layout: Strategy, cluster: Cluster) -> Job:
    """The job in another layout, with those of its options that are read there.

    Raises:
        UsageError: one of them does not go with the layout.
    """
    if not job.given:
        return replace(job, strategy=layout, cluster=cluster)
    option_names, now = set(job.given), job.strategy.options()
    if isinstance(requested := job.given.get("strategy"), Strategy):
        option_names |= requested.options_beside_name().keys()
    option_names &= declared(Strategy).keys()
    layout = layout.with_options(**{name: now[name] for name in option_names})
    usual = Strategy(name="").options()
    left_out = ignored(layout, option_names)
    layout = layout.with_options(**{name: usual[name] for name in left_out})
    card, old_cluster = cluster.accelerator, job.cluster
    is_same = isinstance(old_cluster, Cluster) and old_cluster.accelerator == card
    return job.changed(
        strategy=layout,
        gpu=job.given.get("gpu") if is_same or card is None else card.id,
        gpus=len(cluster.gpus),
        nodes=cluster.nodes,
        cpu=None,
        **dict.fromkeys(left_out),
    )


def _switched(chain: tuple[Switch, ...]) -> Option:
    return Option(
        nodes=1,
        strategy=chain[-1].strategy,
        workload=chain[-1].workload,
        switches=tuple(dict.fromkeys(switch.name for switch in chain)),
        changes_result=any(switch.changes_result for switch in chain),
        estimate=chain[-1].estimate,
    )


def _first_count(job: Job, gpu: str | Accelerator, name: str, headroom: float) -> Option | None:
    count = 2
    while count <= MOST_GPUS:
        nodes = max(1, count // NODE)
        cluster = Cluster.rented(gpu, gpus=count // nodes, nodes=nodes)
        for layout in _layouts(name, count):
            try:
                laid_out = _laid_out(job, layout, cluster)
                estimate = training_memory(laid_out)
            except UsageError:
                continue  # heads or experts do not divide, or 4-bit weights cannot be split
            if leaves_headroom(estimate, headroom):
                return Option(
                    nodes=nodes,
                    strategy=laid_out.strategy,
                    workload=laid_out.workload,
                    estimate=estimate,
                )
        count *= 2
    return None


def _layouts(name: str, count: int) -> Iterator[Strategy]:
    if name != "fsdp+tp":
        try:
            yield Strategy.parse(name, count)
        except UnknownNameError:
            raise
        except UsageError:  # hsdp needs four
            return
        return
    for tp in (2, 4, 8):
        if count % tp == 0 and count > tp:
            layout = Strategy.parse(f"fsdp{count // tp}-tp{tp}", count)
            yield layout.with_options(sequence_parallel=True)

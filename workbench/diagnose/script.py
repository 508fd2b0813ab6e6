"""What the script itself does not do right: sampling, wrapping, group size, no steps."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from workbench.diagnose.evidence import Evidence
from workbench.diagnose.failure import tail_now
from workbench.diagnose.frames import TRACEBACK, Line, code_tree, parse_traceback
from workbench.observe.rewinds import Rewind
from workbench.store.findings import Finding
from workbench.store.rank_records import SamplerDoc, UnusedParametersDoc

_GROUP_FORMS_SECONDS = 20.0  # processes that import torch need a few
_ERRORS_SKIPPED = 3
_SAME_STEPS = 4  # with different batches: fewer may be a constant warm-up batch
_LOGS = 8  # of ranks
_LOG_BYTES = 8000
_THREAD = re.compile(r"Exception in thread (.+):\s*\Z")  # what Python prints before it
_LAST_WORDS = 4  # lines after the traceback
_ERROR_LETTERS = 200
_FEW_STEPS_REDONE = 0.02  # share of a run's steps that is only worth a note


def world_size(evidence: Evidence) -> Iterator[Finding]:
    """A process group of another size than was asked for."""
    requested, seen = evidence.processes, evidence.facts.world_size
    if seen is None or seen == requested or evidence.steps == 0:
        return
    if evidence.spawned:
        return  # the script starts its processes itself, as many as it wants
    yield Finding(
        kind="world-size",
        severity="error",
        confidence=0.95,
        evidence=f"{requested} processes were requested; the script formed a group of {seen}.",
        cause=f"{requested} independent trainings may be running: the script does not form a "
        "process group."
        if seen == 1
        else "The script uses only some of the processes.",
        next="Use Accelerator() or init_process_group() in the script, or request one process.",
    )


def spawned_groups(evidence: Evidence) -> Iterator[Finding]:
    """Each of several launched processes starts ranks of its own, and no one trains."""
    facts = evidence.facts
    if evidence.processes < 2 or evidence.steps or facts.phase == "ended":
        return
    starting = {
        rank: waits
        for rank, waits in evidence.group_waits.items()
        if evidence.starts[rank].group_world_size is None
    }
    waited = facts.time - max((max(waits) for waits in starting.values()), default=0.0)
    if len(starting) < 2 or waited < _GROUP_FORMS_SECONDS:
        return
    each = max(len(waits) for waits in starting.values())
    yield Finding(
        kind="spawned-groups",
        severity="error",
        confidence=0.9,
        evidence=f"Each of {len(starting)} launched processes started {each} that have waited "
        f"{waited:.0f} s in init_process_group(); there is no optimizer step.",
        cause="The script starts its ranks itself (torch.multiprocessing), so every launched "
        "process starts a group of its own. They meet on one port, or wait for a rendezvous that "
        "no process serves.",
        next="Stop the run and launch the script with one process (--nproc 1): the ranks that it "
        "starts are recorded.",
    )


def no_steps(evidence: Evidence) -> Iterator[Finding]:
    """The script has ended without an optimizer step."""
    if evidence.facts.phase != "ended" or evidence.outcome != "no-steps":
        return
    yield Finding(
        kind="no-steps",
        severity="error",
        confidence=0.9,
        evidence="The script ended with exit code 0 and no optimizer step was seen.",
        cause="It exited early: many examples do with too few GPUs or missing data.",
        next="Read the end of logs/rank-0.log.",
    )


def caught_error(evidence: Evidence) -> Iterator[Finding]:
    """The script has ended by an exception that it caught, printed and did not pass on."""
    if evidence.outcome != "succeeded":
        return
    for rank in range(min(_LOGS, evidence.processes)):
        log = tail_now(evidence.paths.rank_log(rank), _LOG_BYTES)
        before, begin, block = log.rpartition(TRACEBACK)
        chain = parse_traceback(begin + block)
        if not chain or before.rstrip().rpartition("\n")[2].startswith("Exception ignored in"):
            continue  # a clean-up at Python's exit is no training
        error, after = chain[0], block.rpartition(chain[0].message or chain[0].kind)[2]
        lines = [line for line in after.splitlines() if line.strip()]
        if len(lines) > _LAST_WORDS:
            continue
        where, thread = _where(evidence, rank, error.frames), _THREAD.search(before)
        yield Finding(
            kind="caught-error",
            rank=rank,
            step=evidence.steps,
            confidence=0.7,
            evidence=f"The log of rank {rank} ends with a traceback: {error.text[:_ERROR_LETTERS]}"
            + (f" ({where})." if where else "."),
            cause=f"The error ended the thread {thread[1]} alone, and the script ended with exit "
            "code 0: what that thread was to do is not done."
            if thread
            else "The script caught an error, printed it and ended with exit code 0: the run "
            f"counts as succeeded, and may have stopped early, after step {evidence.steps}.",
            next=f"Read the end of logs/rank-{rank}.log. Let the error pass, or end with "
            "sys.exit(1), so that the run counts as failed and can be restarted.",
        )
        return


def _where(evidence: Evidence, rank: int, frames: Sequence[Line]) -> str:
    """The user's own line of a traceback, else the innermost: ``train.py:31``; "" without any."""
    start = evidence.starts.get(rank)
    tree = code_tree(start.code if start else None)
    own = tree.user_frame([frame.path for frame in frames])
    at = frames[-1 if own is None else own] if frames else None
    return f"{tree.display_path(at.path)}:{at.line}" if at else ""


def skipped_errors(evidence: Evidence) -> Iterator[Finding]:
    """The loop continues after errors in its steps, which then train nothing."""
    for rank, start in sorted(evidence.starts.items()):
        failed = start.failed_passes or {}
        count, error = failed.get("count", 0), str(failed.get("error"))
        if count < _ERRORS_SKIPPED or "OutOfMemory" in error:
            continue
        yield Finding(
            kind="skipped-errors",
            rank=rank,
            step=failed.get("first_step"),
            severity="error",
            confidence=0.85,
            evidence=f"Steps of rank {rank} raised {count} times, first step "
            f"{failed.get('first_step')}; the last time its {failed.get('place', 'backward pass')}:"
            f" {error[:_ERROR_LETTERS]}",
            cause="The script catches an error of its training loop and continues: these batches "
            "train nothing, and ranks that skip a step call other collectives than their peers.",
            next="Let the error pass (no `except` around the step), or log it and end the run; "
            "look at what the other ranks did in that step too.",
        )
        return


def wrapped_twice(evidence: Evidence) -> Iterator[Finding]:
    """A model in DistributedDataParallel twice: each gradient is exchanged twice."""
    inside = [rank for rank, start in evidence.starts.items() if start.wrapped_inside]
    if not inside:
        return
    yield Finding(
        kind="wrapped-twice",
        confidence=0.95,
        evidence=f"On {len(inside)} ranks a DistributedDataParallel model is inside another one.",
        cause="Both exchange the gradients of the same parameters in each backward pass: twice the "
        "traffic, and parameter names that begin with module.module.",
        next="Wrap the model once: where a trainer wraps it, give it the plain model.",
    )


def samplers(evidence: Evidence) -> Iterator[Finding]:
    """Loaders that give every rank the same data, or every epoch the same order."""
    if _data_ranks(evidence) < 2:
        return
    for number, feed in enumerate(_feeds(evidence)):
        name = str(feed.get("sampler"))
        shares = feed.get("distributed") is False and not _own_parts(evidence, number)
        if shares and evidence.steps >= 5:
            yield Finding(
                kind="no-distributed-sampler",
                confidence=0.75,
                evidence=f"The loader that trains uses {name} on each of {evidence.processes} "
                "ranks.",
                cause="Unless the script gives each rank a part of its own, every rank reads the "
                "entire data set: an epoch takes as many steps as on one GPU, and with equal seeds "
                "all ranks see the same batches.",
                next="Use DistributedSampler(dataset), or accelerator.prepare(loader) to split it.",
            )
        if feed.get("set_epoch") is False and feed.get("shuffle") and feed.get("distributed"):
            yield Finding(
                kind="missing-set-epoch",
                confidence=0.9,
                evidence=f"{name} started {feed.get('iterations')} passes over the data with the "
                "same epoch number.",
                cause="Without set_epoch() every epoch has the same order.",
                next="Call loader.sampler.set_epoch(epoch) at the start of every epoch.",
            )


def same_data(evidence: Evidence) -> Iterator[Finding]:
    """Every rank trains on the same batches, whatever feeds them: their losses are equal, too.

    Tensor and pipeline ranks of one model do so rightly; of ranks that the script started itself
    DDP's account of its parameters tells that they are copies.
    """
    same = evidence.same_data.steps
    copies = _data_ranks(evidence) == evidence.processes > 1
    if evidence.spawned:
        copies = all(start.unused_parameters is not None for start in evidence.starts.values())
    if len(same) < _SAME_STEPS or not copies:
        return
    yield Finding(
        kind="same-data",
        step=same[0],
        confidence=0.9,
        evidence=f"All {evidence.processes} ranks had the same batch and the same loss in each of "
        f"{len(same)} steps that were compared (steps {same[0]} to {same[-1]}).",
        cause="Every rank reads the same data, so more ranks do the same work again and the batch "
        "is as large as one rank's.",
        next="Give each rank its part: DistributedSampler(dataset), accelerator.prepare(loader), "
        "or for a stream split_dataset_by_node(dataset, rank, world_size).",
    )


def unused_parameters(evidence: Evidence) -> Iterator[Finding]:
    """Parameters without a gradient under DDP, or a needless search for them at every step."""
    for rank, start in evidence.starts.items():
        unused = start.unused_parameters
        if unused is None:
            continue
        searches = bool(unused.get("find_unused_parameters"))
        if unused.get("last") is False:
            continue  # other steps may use what this one did not
        if unused.get("count"):
            yield _never_used(unused, rank, searches=searches)
        elif searches and not unused.get("sometimes"):
            yield Finding(
                kind="needless-find-unused",
                severity="note",
                confidence=0.6,
                evidence="find_unused_parameters is on, and every parameter got a gradient"
                f"{_in_steps(unused)}.",
                cause="DDP searches the graph in every step for unused parameters and finds none.",
                next="Leave find_unused_parameters off, unless some batches skip parts. "
                "transformers' Trainer turns it on by itself: --ddp_find_unused_parameters False.",
            )
        return


def not_sharded(evidence: Evidence) -> Iterator[Finding]:
    """FSDP or ZeRO was asked for, and the script wraps its model in DDP itself."""
    sharded = evidence.strategy("dp_shard", 1) > 1 and evidence.strategy("engine") != "torch"
    in_ddp = [start.unused_parameters is not None for start in evidence.starts.values()]
    if not sharded or evidence.spawned or not in_ddp or not all(in_ddp):
        return
    yield Finding(
        kind="not-sharded",
        confidence=0.85,
        evidence=f"{evidence.run.strategy_name} was asked for, and every rank trains a model in "
        "DistributedDataParallel.",
        cause="The script wraps its model in DDP itself, so each rank holds the whole model: "
        "Accelerate shards only what accelerator.prepare() gets.",
        next="Use accelerator.prepare(model) in place of DistributedDataParallel(model), or launch "
        "it as what it is: --strategy ddp.",
    )


def _never_used(unused: UnusedParametersDoc, rank: int, *, searches: bool) -> Finding:
    return Finding(
        kind="unused-parameters",
        severity="note" if searches else "warning",
        step=unused.get("step"),
        confidence=0.8,
        evidence=f"{unused.get('count')} of {unused.get('parameters')} parameters got no gradient "
        f"on rank {rank}{_in_steps(unused)}, the first is {unused.get('first')}.",
        cause=(
            "They are not used in the loss, so DDP waits for gradients that never come, or "
            "searches the graph in every step."
        ),
        next="Freeze them with requires_grad_(False)"
        + ("." if searches else ", or set find_unused_parameters=True."),
    )


def _in_steps(unused: UnusedParametersDoc) -> str:
    looks = unused.get("looks") or 1
    return f" in the {looks} steps looked at" if looks > 1 else ""


def steps_redone(evidence: Evidence) -> Iterator[Finding]:
    """The script went back to a checkpoint of its own, and does steps again."""
    rewinds = evidence.rewinds
    if not rewinds:
        return
    latest, count = rewinds[-1], sum(rewind.steps for rewind in rewinds)
    times = "" if len(rewinds) == 1 else f", {count} steps over {len(rewinds)} times"
    yield Finding(
        kind="steps-redone",
        severity="warning" if count > _FEW_STEPS_REDONE * evidence.steps else "note",
        step=latest.first,
        confidence=0.9,
        evidence=f"{_steps_text(latest)} done again{times}: the state that was saved at step "
        f"{latest.first - 1} was loaded after step {latest.last}.",
        cause=(
            "The script loaded one of its own checkpoints, after an error that it caught or by a "
            "restart of its processes."
        ),
        next=f"Read logs/rank-0.log around step {latest.last} for the reason. Each step counts "
        "once in the totals; the time of both passes counts in the cost.",
    )


def _steps_text(rewind: Rewind) -> str:
    if rewind.steps == 1:
        return f"Step {rewind.first} was"
    return f"Steps {rewind.first} to {rewind.last} were"


def _own_parts(evidence: Evidence, number: int) -> bool:
    """Whether the script itself gave each rank other data to read with that loader."""
    rank_samplers = [
        start.samplers for start in evidence.starts.values() if start.samplers is not None
    ]
    feeds = [samplers[number] for samplers in rank_samplers if len(samplers) > number]
    marks = {feed.get("data") for feed in feeds}
    in_order = not any(feed.get("shuffle") for feed in feeds)
    return len(marks) > 1 or (in_order and evidence.same_data.differ)


def _feeds(evidence: Evidence) -> Sequence[SamplerDoc]:
    """How the loaders that train do sample, as the first rank that says so tells."""
    rank_samplers = (
        start.samplers for start in evidence.starts.values() if start.samplers is not None
    )
    return next(rank_samplers, ())


def _data_ranks(evidence: Evidence) -> int:
    """Ranks that should see different data."""
    if evidence.spawned:
        return evidence.facts.world_size or 1
    replicate, shard = evidence.strategy("dp_replicate", 1), evidence.strategy("dp_shard", 1)
    return int(replicate or 1) * int(shard or 1)


RULES = (
    *(world_size, spawned_groups, no_steps, samplers, same_data, unused_parameters, not_sharded),
    *(steps_redone, skipped_errors, wrapped_twice),
)

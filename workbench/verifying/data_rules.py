"""Which samples the ranks read: twice, left out, in the same order again, or made alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from workbench.verifying.trace import RankTrace, Step, Trace
from workbench.verifying.verdict import Verdict

_LISTED = 4  # samples named in a sentence
_SKEW = 1.1  # targets of one rank over those of another, beyond which their mean is another one
_OTHER = 1e-3  # of a loss: beyond rounding, with the same weights and inputs
_DROPPED = 0.05  # of the data set: a few samples of a last batch are usual


def same_data(trace: Trace, reference: Trace | None) -> Iterator[Verdict]:
    """Ranks that should split the data read the same samples."""
    for number in range(trace.steps):
        steps = trace.at(number)
        for first, second in combinations(range(len(steps)), 2):
            shared = _shared(steps[first], steps[second])
            if shared is None or _other_loss(steps[first], steps[second]):
                continue
            if 2 * len(shared) > len(set(steps[first].samples)):
                yield _same(trace, number + 1, (first, second), shared, steps[first])
                return
    verdict = _whole_data(trace, reference)
    if verdict is not None:
        yield verdict


def _other_loss(step: Step, other: Step) -> bool:
    """Whether a loss of its own on the same inputs tells that each rank has its own targets."""
    if step.samples != other.samples or step.loss is None or other.loss is None:
        return False  # as with one whole graph, of which each rank trains other nodes
    return abs(step.loss - other.loss) > _OTHER * max(abs(step.loss), abs(other.loss))


def _shared(step: Step, other: Step) -> set[int] | None:
    """Contents that two ranks have in common; None where nothing tells."""
    if not step.samples or not other.samples:
        return None
    if (step.indices and other.indices) and not set(step.indices) & set(other.indices):
        return None  # other samples, which happen to hold the same
    few = 2 * len(set(step.samples)) < len(step.samples)
    if few and step.samples != other.samples:
        return None  # of a few possible contents, as a game's states, both have most
    return set(step.samples) & set(other.samples)


def _same(trace: Trace, step: int, ranks: tuple[int, int], shared: set[int], seen: Step) -> Verdict:
    named = "" if seen.indices is None else f" (data set entries {_few(seen.indices)})"
    feed = trace.ranks[0].feed
    sampler = "" if feed is None else f" The loader that trains samples by {feed['sampler']}."
    return Verdict(
        kind="same-data",
        part="data",
        step=step,
        what=f"the batches of ranks {ranks[0]} and {ranks[1]}",
        evidence=f"{len(shared)} of {len(set(seen.samples))} samples of rank {ranks[0]} are those "
        f"of rank {ranks[1]}{named}.{sampler}",
        bound="No sample is read by two ranks in one step.",
        cause="The data is not split between the ranks: no DistributedSampler, or every rank draws "
        "with the same seed. All ranks compute the same gradient; the rest of the work is wasted.",
        next="Use DistributedSampler(dataset), or accelerator.prepare(loader); with data made in "
        "the loop, seed it by rank.",
    )


def _whole_data(trace: Trace, reference: Trace | None) -> Verdict | None:
    """A plain sampler that has each rank read as many samples in an epoch as one: all of them."""
    feed = trace.ranks[0].feed
    single_feed = reference.ranks[0].feed if reference is not None and reference.ranks else None
    if (
        feed is None
        or single_feed is None
        or feed["distributed"] is not False
        or feed["dispatched"]
    ):
        return None
    feeds = [rank.feed for rank in trace.ranks]
    lengths = {None if rank_feed is None else rank_feed["length"] for rank_feed in feeds}
    if not feed["length"] or lengths != {single_feed["length"]}:
        return None  # a rank with fewer entries has a part of its own
    epoch, single_epoch = _epoch(feed), _epoch(single_feed)
    if epoch is None or single_epoch is None or 2 * epoch <= (1 + 1 / len(feeds)) * single_epoch:
        return None  # so has one whose sampler takes its part
    return Verdict(
        kind="same-data",
        part="data",
        what="the loader that trains",
        evidence=f"{feed['sampler']} draws from all {feed['length']} entries of the data set on "
        f"each of {len(trace.ranks)} ranks, as it does on one.",
        bound="Each rank draws from a part of its own.",
        cause="No DistributedSampler: an epoch takes as many steps as on one rank, and each sample "
        f"is read up to {len(trace.ranks)} times in it.",
        next="Use DistributedSampler(dataset), or accelerator.prepare(loader).",
    )


def _epoch(feed: Mapping[str, Any]) -> int | None:
    """Samples that a loader reads in a pass; of a batch sampler without a size, its batches."""
    batches = feed.get("batches")
    return None if batches is None else batches * (feed["batch_size"] or 1)


def same_order(trace: Trace, _reference: Trace | None) -> Iterator[Verdict]:
    """A shuffled loader gives the second epoch in the order of the first."""
    rank = trace.ranks[0]
    for number, feed in enumerate(rank.loaders):
        passes: dict[int, list[int]] = {}
        for fetch in rank.fetches:
            if fetch["loader"] == number and fetch["indices"]:
                passes.setdefault(fetch["pass"], []).extend(fetch["indices"])
        first, second = passes.get(1, []), passes.get(2, [])
        length = min(len(first), len(second))
        if not feed["shuffle"] or length < 4 or first[:length] != second[:length]:
            continue
        distributed = feed["distributed"]
        yield Verdict(
            kind="missing-set-epoch" if distributed else "same-order",
            part="data",
            step=1 + _step_of(rank, number),
            what="the order of the second epoch",
            evidence=f"Its first {length} samples ({_few(second)}) are those of the first epoch, "
            f"in the same order, from {feed['sampler']}.",
            bound="A shuffled epoch has an order of its own.",
            cause="set_epoch() is not called, so each epoch is shuffled with the same seed."
            if distributed
            else "The generator of the loader is seeded again in each epoch.",
            next="Call sampler.set_epoch(epoch) at the start of every epoch."
            if distributed
            else "Make and seed the generator once, before the loop.",
        )


def _step_of(rank: RankTrace, loader: int) -> int:
    """Optimizer steps before the loader's second pass."""
    first = sum(fetch["loader"] == loader and fetch["pass"] == 1 for fetch in rank.fetches)
    each = max(1, len(rank.steps[0].batches)) if rank.steps else 1
    return first // each


def same_content(trace: Trace, reference: Trace | None) -> Iterator[Verdict]:
    """Batches of different entries that hold the same: their random numbers are the same."""
    if reference is not None and _is_fixed(trace, reference):
        return  # the data set has them several times
    seen: dict[int, tuple[int, Sequence[int]]] = {}
    for rank in trace.ranks:
        for fetch in rank.fetches:
            mark, indices = fetch["hash"], fetch["indices"]
            if mark is None or not indices or not fetch["varied"]:
                continue
            before = seen.setdefault(mark, (rank.rank, indices))
            if not set(before[1]) & set(indices):
                yield _made_alike(rank, fetch, before)
                return


def _is_fixed(trace: Trace, reference: Trace) -> bool:
    """Whether each entry that both runs read holds the same in both: none is drawn at random."""
    contents, others = _contents(trace), _contents(reference)
    shared = contents.keys() & others.keys()
    return bool(shared) and all(contents[entry] == others[entry] for entry in shared)


def _contents(trace: Trace) -> dict[int, set[int]]:
    """What each entry of the data set held when the model was given it."""
    contents: dict[int, set[int]] = {}
    for batch in (batch for rank in trace.ranks for step in rank.steps for batch in step.batches):
        if batch.drawn and len(batch.indices or ()) == len(batch.samples):
            for entry, mark in zip(batch.indices or (), batch.samples, strict=True):
                contents.setdefault(entry, set()).add(mark)
    return contents


def _made_alike(
    rank: RankTrace, fetch: Mapping[str, Any], before: tuple[int, Sequence[int]]
) -> Verdict:
    loader: Mapping[str, Any] = rank.loaders[int(fetch["loader"])]
    return Verdict(
        kind="same-random-data",
        part="data",
        rank=rank.rank,
        what=f"the batch of entries {_few(fetch['indices'])} on rank {rank.rank}",
        evidence=f"It holds exactly what the batch of entries {_few(before[1])} on rank "
        f"{before[0]} holds; the loader has {loader['workers']} workers.",
        bound="Batches of different entries differ.",
        cause="The data set draws random numbers (augmentation), and every worker or rank starts "
        "its generator with the same seed.",
        next="Draw from torch's generator, which is seeded by worker, or seed NumPy and random in "
        "worker_init_fn from torch.initial_seed() and the rank.",
    )


def read_by_each_worker(trace: Trace, _reference: Trace | None) -> Iterator[Verdict]:
    """Each worker of a loader reads the whole stream, so that each batch comes once from each."""
    for rank in trace.ranks:
        for number, feed in enumerate(rank.loaders):
            workers = feed["workers"] or 0
            marks = [
                fetch["hash"]
                for fetch in rank.fetches
                if fetch["loader"] == number and fetch["pass"] == 1 and fetch["indices"] is None
            ]
            rounds = [marks[n : n + workers] for n in range(0, len(marks), max(1, workers))]
            whole = [marks for marks in rounds if len(marks) == workers > 1]
            alike = all(len(set(marks)) == 1 and marks[0] is not None for marks in whole)
            if len(whole) < 2 or not alike or len({marks[0] for marks in whole}) < len(whole):
                continue
            yield Verdict(
                kind="read-by-each-worker",
                part="data",
                rank=rank.rank,
                what="the batches of a stream",
                evidence=f"Of the first {len(whole) * workers} batches each comes {workers} times: "
                f"once from each of {workers} workers.",
                bound="Each sample of a stream is read by one worker.",
                cause="The IterableDataset does not split its samples between the workers of a "
                f"loader, and each of them reads all: an epoch has {workers} times as many.",
                next="In __iter__ take every n-th sample by torch.utils.data.get_worker_info() (id "
                "and num_workers), besides the rank's.",
            )
            return


def uneven_batch(trace: Trace, _reference: Trace | None) -> Iterator[Verdict]:
    """A tensor of a batch has one row where the others have one for each sample."""
    for rank in trace.ranks:
        for fetch in rank.fetches:
            count = len(fetch["indices"] or ())
            firsts = fetch["firsts"]
            if count > 1 and 1 in firsts and count in firsts:
                yield Verdict(
                    kind="batch-shape",
                    part="data",
                    rank=rank.rank,
                    what=f"tensor {firsts.index(1)} of the first such batch",
                    evidence=f"The batch has {count} samples; its tensors begin with {firsts}.",
                    bound=f"Each tensor of a batch has a row for each of its {count} samples.",
                    cause="The processor or collate function joins the samples into one row: it "
                    "was given one list where it wants a list for each sample.",
                    next="Print the shapes of one batch, and give the processor one list per "
                    "sample.",
                )
                return


def unequal_tokens(trace: Trace, _reference: Trace | None) -> Iterator[Verdict]:
    """Each rank's loss is a mean over another number of targets, and all count the same."""
    for number in range(trace.steps):
        steps = trace.at(number)
        counts = [sum(target["valid"] for target in step.targets) for step in steps]
        means = all(target["reduction"] == "mean" for step in steps for target in step.targets)
        padded = any(target["valid"] < target["all"] for step in steps for target in step.targets)
        if not (means and padded) or min(counts) == 0 or max(counts) < _SKEW * min(counts):
            continue
        yield Verdict(
            kind="unequal-tokens",
            part="loss",
            step=number + 1,
            severity="warning",
            what="the mean of the loss",
            evidence=f"The ranks' losses are means over {', '.join(map(str, counts))} targets, and "
            "each rank counts the same in the average of the gradients.",
            bound=f"A target weighs up to {max(counts) / min(counts):.2f} times as much as on "
            f"another rank; within {_SKEW} it is taken as equal.",
            cause="Padding: a mean over each rank's own tokens is not the mean over all tokens.",
            next="Sum the loss and divide by the number of tokens of all ranks (all_reduce it), "
            "times the number of ranks.",
        )
        return


def _few(values: Sequence[int]) -> str:
    text = ", ".join(map(str, values[:_LISTED]))
    return text + (" …" if len(values) > _LISTED else "")


def left_out(trace: Trace, reference: Trace | None) -> Iterator[Verdict]:
    """Samples that no rank reads, or ranks that have more of them than others."""
    feeds = [rank.feed for rank in trace.ranks]
    if any(feed is None or feed["dispatched"] for feed in feeds):
        return
    present = [feed for feed in feeds if feed is not None]
    single_feed = reference.ranks[0].feed if reference is not None and reference.ranks else None
    mistake = _more_parts(trace, present) or _own_shards(present, single_feed) or _dropped(present)
    if mistake is not None:
        subject, evidence, cause, move = mistake
        yield Verdict(
            kind="samples-left-out",
            part="data",
            severity="warning",
            what=subject,
            evidence=evidence,
            bound="In an epoch each sample is read once, but for a last batch.",
            cause=cause,
            next=move,
        )


_Mistake = tuple[str, str, str, str]


def _more_parts(trace: Trace, feeds: Sequence[Mapping[str, Any]]) -> _Mistake | None:
    parts, ranks = feeds[0].get("replicas"), len(trace.ranks)
    if not isinstance(parts, int) or parts <= ranks:
        return None
    return (
        feeds[0]["sampler"],
        (
            f"It splits the data set into {parts} parts, and {ranks} ranks read one each: "
            f"{1 - ranks / parts:.0%} of {feeds[0]['length']} entries are never read."
        ),
        "num_replicas is another number than that of the ranks.",
        "Leave num_replicas and rank to DistributedSampler, which asks the process group.",
    )


def _own_shards(
    feeds: Sequence[Mapping[str, Any]], single_feed: Mapping[str, Any] | None
) -> _Mistake | None:
    """Data sets that the script itself splits."""
    lengths, full_length = [feed["length"] for feed in feeds], (single_feed or {}).get("length")
    if not full_length or not all(lengths) or lengths == [full_length] * len(lengths):
        return None
    if any(feed["distributed"] is not False for feed in feeds):
        return None
    if full_length - sum(lengths) >= len(lengths):
        return (
            "the data sets of the ranks",
            (
                f"They have {', '.join(map(str, lengths))} entries, {sum(lengths)} together; "
                f"one rank alone has {full_length}."
            ),
            "The script splits the data by itself, by a fixed size or for more ranks than run.",
            "Use DistributedSampler(dataset), or dataset[rank::world_size].",
        )
    batches = [feed.get("batches") for feed in feeds]
    if None in batches or len(set(batches)) == 1:
        return None
    return (
        "the shards of the ranks",
        f"An epoch has {', '.join(map(str, batches))} batches on ranks 0 to {len(feeds) - 1}.",
        (
            "The shards are uneven: the rank with more batches waits for the others, or they "
            "stop it before its last ones."
        ),
        "Give each rank the same number of batches (DistributedSampler pads), or use Join.",
    )


def _dropped(feeds: Sequence[Mapping[str, Any]]) -> _Mistake | None:
    """A loader that drops the same last samples in each epoch."""
    feed = feeds[0]
    length, size, batches = feed["length"], feed["batch_size"], feed.get("batches")
    if feed["shuffle"] or not feed["drop_last"] or not (length and size and batches):
        return None
    read = batches * size * (len(feeds) if feed["distributed"] else 1)
    if feed["distributed"] is False or read >= (1 - _DROPPED) * length:
        return None
    return (
        "the last samples of an epoch",
        (
            f"The loader drops the last batch of each rank without shuffling: {length - read} of "
            f"{length} entries are never read."
        ),
        "drop_last=True takes the same entries out of each epoch, once for each rank.",
        "Shuffle, or leave drop_last off.",
    )


SPLIT_RULES = (same_data, left_out)
"""Of ranks that should read different data."""
RULES = (same_order, same_content, read_by_each_worker, uneven_batch, unequal_tokens)

"""Train a small GPT on text every machine already has: the sources of Python's standard library.

    python gpt.py --minutes 2
    torchrun --nproc-per-node 8 gpt.py --size 12 --seq-len 1024 --precision bf16 --steps 2000

It needs torch, accelerate and the files beside it. What Accelerate can do to any script (DDP, FSDP,
DeepSpeed) is chosen outside, with `accelerate launch`; what a script has to do itself (tensor,
pipeline and context parallelism, the options of DDP) are flags here. Everything above `import
torch` needs only the standard library: a wrong flag is answered at once, and a tool can execute
that part to learn the shape.
"""

# ruff: noqa: E402 - the command line is read before torch is loaded, see above
# Accelerate has no type stubs, so whatever it returns is unknown to a strict checker.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import argparse
import collections
import math
import time
from collections.abc import Sequence

from recipe_options import (
    OPTIMIZERS,
    Parser,
    add_checkpoints,
    add_gpt,
    add_samples,
    check_checkpoints,
    check_positive,
    check_samples,
    complete_gpt,
    learning_rate,
    options_or_exit,
    with_checkpoint,
)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line and fill in what follows from it; ValueError if it cannot be."""
    parser = Parser(description="Train a small GPT.", allow_abbrev=False)
    add_gpt(parser)
    add = parser.group("batch")
    add("--seq-len", type=int, default=128, help="bytes per sequence")
    add("--micro-batch", type=int, default=8, help="sequences per process and micro-step")
    add("--accumulate", type=int, default=1, help="micro-steps per optimizer step")
    add = parser.group("schedule")
    add("--steps", type=int, help="stop after this many optimizer steps")
    add("--minutes", type=float, help="time limit of the loop; 2 without --steps")
    add("--lr", type=float, help="peak learning rate; default: from the width")
    add("--warmup", type=int, default=30, help="steps until the peak learning rate")
    add = parser.group("precision and optimizer")
    add("--precision", choices=("fp32", "bf16", "fp16", "fp8"), default="fp32")
    add("--optimizer", choices=OPTIMIZERS, default="adamw-fused", help="optimizer")
    add("--compile", action="store_true", help="torch.compile each block")
    add = parser.group("evaluation and output")
    add("--seed", type=int, default=0, help="seed of the weights and the data order")
    add("--log-every", type=int, default=10, help="steps between printed lines")
    add("--eval-every", type=int, default=100, help="steps between evaluations; 0: at the end")
    add("--fingerprint", action="store_true", help="print a SHA-256 of all weights at the end")
    add_samples(parser, "evaluation and output")
    add_checkpoints(parser)
    _add_layout(parser)
    options = parser.parse_args(arguments)
    zero = {"warmup", "seed", "eval_every", "checkpoint_every", "sample_every"}
    check_positive(parser, options, zero)
    check_checkpoints(parser, options)
    check_samples(parser, options)
    complete_gpt(parser, options)
    if options.static_graph and options.accumulate > 1:
        parser.error(
            "--static-graph fails in DDP's reducer with --accumulate above 1 (its first micro-step "
            "exchanges nothing): remove one of them"
        )
    check_layout(options, parser)
    options.minutes = options.minutes or (None if options.steps else 2.0)
    return options


def _add_layout(parser: Parser) -> None:
    """How the model is split, for what Accelerate cannot set from outside."""
    add = parser.group("layout")
    schedules = ("1f1b", "gpipe", "interleaved", "zero-bubble", "naive")
    add("--tp", type=int, default=1, help="tensor-parallel ranks")
    add("--sequence-parallel", action="store_true", help="tp: also split the norms' activations")
    add("--cp", type=int, default=1, help="context-parallel ranks")
    add("--cp-method", choices=("ring", "ulysses"), default="ring")
    add("--pp", type=int, default=1, help="pipeline stages; --accumulate counts the micro-batches")
    add("--schedule", choices=schedules, default="1f1b", help="naive: one stage runs at a time")
    add("--virtual-stages", type=int, default=1, help="pieces of the model per pipeline rank")
    add("--dp-shard", type=int, default=1, help="with tp, cp or pp: ranks that share one copy")
    add(
        "--recompute",
        choices=("none", "full"),
        default="none",
        help="recompute activations where FSDP does not",
    )
    add("--sync-gradients", choices=("micro-batch", "step"), help="default: step; fsdp micro-batch")
    add = parser.group("DDP")
    hooks = ("fp16", "bf16", "powersgd", "topk")
    add("--comm-hook", choices=hooks, help="ddp: compress gradients")
    add("--topk-density", type=float, default=0.01, help="topk: share of the gradients sent")
    add("--no-error-feedback", action="store_true", help="topk: discard what was not sent")
    add("--count-bytes", action="store_true", help="ddp: print the bytes of the gradient exchange")
    add("--bucket-elements", type=int, help="ddp: gradients per bucket; default 25 MiB of fp32")
    add("--bucket-views", action="store_true", help="ddp: gradients are views of the buckets")
    add("--static-graph", action="store_true", help="ddp: the graph never changes")
    add("--find-unused", action="store_true", help="ddp: find parameters without gradient")
    add("--zero-optimizer", action="store_true", help="ddp: torch's ZeroRedundancyOptimizer")


def check_layout(options: argparse.Namespace, parser: Parser) -> None:
    """Refuse what cannot be split as asked; see model_parallel.py."""
    tp, cp, heads, length = options.tp, options.cp, options.heads, options.seq_len
    stages, count = options.pp * options.virtual_stages, options.accumulate
    ring = cp > 1 and options.cp_method == "ring"
    parts = 2 * cp if ring else cp  # ring gives each rank an early and a late part
    dealt = options.schedule in {"interleaved", "zero-bubble"} or options.virtual_stages > 1
    dealt = dealt and options.schedule not in {"gpipe", "naive"}  # in equal rounds
    uneven = options.pp > 1 and dealt and count % max(1, count // options.pp)
    wrong = {
        f"--heads {heads} is not a multiple of --tp {tp}: each rank holds complete heads": heads
        % tp,
        f"--seq-len {length} is not a multiple of {parts}, the number of parts of --cp {cp}": length
        % parts,
        f"--seq-len {length} over --cp {cp} is "
        f"not a multiple of --tp {tp}, which "
        "--sequence-parallel needs": options.sequence_parallel and length // cp % tp,
        f"--cp-method ulysses splits {heads // tp} "
        f"heads over --cp {cp} ranks: use a multiple, "
        "or ring": cp > 1 and not ring and heads // tp % cp,
        f"--layers {options.layers} cannot make {stages} stages: use "
        "more layers, or a smaller --pp or --virtual-stages": options.layers < stages,
        f"--schedule {options.schedule} with --pp {options.pp} needs a multiple of it as "
        f"--accumulate, not {count}: use --accumulate {2 * options.pp}": uneven,
        "--optimizer "
        f"{options.optimizer} "
        "does not support TP, CP "
        "or PP: use adamw-fused": options.optimizer != "adamw-fused" and tp * cp * options.pp > 1,
        f"--topk-density {options.topk_density} is a fraction: give a value above 0 and at most "
        "1": (options.topk_density > 1),
        "--topk-density and --no-error-feedback need --comm-hook topk": (
            options.comm_hook != "topk"
            and (options.no_error_feedback or options.topk_density != 0.01)
        ),
        "--zero-optimizer works with AdamW only: remove --optimizer": (
            options.zero_optimizer and options.optimizer != "adamw-fused"
        ),
        "--sample-every works where each process has the whole model to compute with: remove it, "
        "or --tp, --cp and --pp": options.sample_every and tp * cp * options.pp > 1,
        f"--hidden {options.hidden} is not a multiple of 16, as the 8-bit matrices of --precision "
        "fp8 need": options.precision == "fp8" and options.hidden % 16,
        f"--micro-batch {options.micro_batch} x --seq-len {length} is not a multiple of 16, as the "
        "8-bit matrices of --precision fp8 need": options.precision == "fp8"
        and options.micro_batch * length % 16,
        "--precision fp8 works with data parallelism (single, ddp, fsdp): remove --tp, --cp "
        "and --pp, or use --precision bf16": options.precision == "fp8"
        and tp * cp * options.pp > 1,
        "fp16 needs a loss scaler, which split models do not have: use --precision bf16": (
            options.precision == "fp16" and tp * cp * options.pp > 1
        ),
        f"--dp-shard {options.dp_shard} works "
        "with --tp, --cp or --pp; for data "
        "parallelism alone choose FSDP in "
        "Accelerate": options.dp_shard > 1 and tp * cp * options.pp == 1,
    }
    for sentence in (sentence for sentence, applies in wrong.items() if applies):
        parser.error(sentence)


if __name__ == "__main__":
    OPTIONS = options_or_exit(lambda: with_checkpoint(parse_options))

import torch
from checkpointing import Alarm, Checkpoints
from corpus import micro_batch, read_corpus
from data_parallel import AcceleratedModel, Batch
from ending import end
from live_requests import asked_to
from samples import Samples, tell
from skipped_data import data_step, skipped_ranges
from torch import Tensor


class Trainer:
    """A model on its device(s), the data and what every step needs of them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        if options.tp * options.cp * options.pp > 1:
            from model_parallel import ModelParallel  # noqa: PLC0415 - only where it is needed

            self.engine: AcceleratedModel | ModelParallel = ModelParallel(options)
        else:
            self.engine = AcceleratedModel(options)
        self.accelerator = self.engine.accelerator
        self.checkpoints = Checkpoints(options, self.accelerator, self.engine.store)
        self.first, self.skipped = self.checkpoints.first, skipped_ranges()
        corpus = read_corpus(options.seq_len)
        self.training, self.validation = (part.to(self.engine.device) for part in corpus)
        self.samples = Samples(options, _bytes_of, _text_of, self.accelerator.print)

    def batches(self, data: Tensor, key: int, of: int) -> list[Batch]:
        """This process's `of` micro-batches of the step `key`."""
        share, length = self.engine.share, self.options.seq_len
        return [micro_batch(data, share, length, key=key, index=i, of=of) for i in range(of)]

    def step(self, number: int) -> list[Tensor]:
        """One optimizer step; the losses of its micro-batches, where this process knows them."""
        key = 1_000_003 * self.options.seed + data_step(number, self.skipped)
        batches = self.batches(self.training, key, self.options.accumulate)
        return self.engine.step(batches, learning_rate(number, self.options))

    def evaluate(self) -> float:
        """The loss on the same eight batches each time, whatever the seed of the run."""
        with torch.no_grad():
            batches = self.batches(self.validation, 0, 8)
            return self.engine.mean(self.engine.loss(batch) for batch in batches)

    def look(self, step: int) -> None:
        """What is due after this many steps: answers to the prompts, the loss on held-out text."""
        if self.samples.due(step) and isinstance(self.engine, AcceleratedModel):
            self.samples.take(step, self.engine.model, self.engine.model)
        every = self.options.eval_every
        if asked_to("evaluate") or (step and every and step % every == 0):
            loss = self.evaluate()
            perplexity = math.exp(loss) if loss < 700 else math.inf  # no float holds more
            tell(step, eval_loss=loss, eval_perplexity=perplexity)
            self.accelerator.print(f"step {step:6d} | validation loss {loss:.4f}")

    def save(self, step: int, recent: Sequence[Tensor] = ()) -> None:
        """All that a resumed run needs, and the loss by which --keep-best chooses."""
        loss = self.engine.mean(recent) if recent else None
        if self.options.keep_best and self.options.eval_every:
            loss = self.evaluate()
        self.checkpoints.save(step, loss)


def _bytes_of(prompt: str) -> list[int]:
    return list(prompt.encode())


def _text_of(tokens: list[int]) -> str:
    return bytes(tokens).decode(errors="replace")


def main(options: argparse.Namespace) -> None:
    """Train until --steps or --minutes, whichever comes first."""
    trainer = Trainer(options)
    engine, accelerator, say = trainer.engine, trainer.accelerator, trainer.accelerator.print
    first = trainer.first
    tokens = options.accumulate * engine.share.ranks * options.micro_batch * options.seq_len
    entropy = describe(trainer)
    say(f"{accelerator.num_processes} processes, {tokens:,} tokens per step, from step {first}")
    recent = collections.deque[Tensor](maxlen=options.log_every * options.accumulate)
    alarm = Alarm(accelerator, 60 * options.minutes if options.minutes else None, first)
    step = logged = first
    if first == 0:
        trainer.look(0)
    since = time.perf_counter()
    while not options.steps or step < options.steps:
        recent += trainer.step(step)
        step += 1
        if step % options.log_every == 0:
            loss, lr = engine.mean(recent), learning_rate(step - 1, options)
            speed = tokens * (step - logged) / (time.perf_counter() - since)
            say(f"step {step:6d} | loss {loss:.4f} | lr {lr:.2e} | {speed:,.0f} tokens/s")
            logged, since = step, time.perf_counter()
        trainer.look(step)
        if trainer.checkpoints.due(step):
            trainer.save(step, recent)
        if alarm.rings(step):
            break
    if recent:
        steps = len(recent) // options.accumulate
        say(f"final training loss {engine.mean(recent):.4f} at step {step}, mean of {steps} steps")
    say(f"final validation loss {trainer.evaluate():.4f}, {entropy}")
    if traffic := getattr(engine, "traffic", None):  # of DDP alone
        say(traffic)
    if options.fingerprint:
        say(f"fingerprint {engine.store.fingerprint()}")
    trainer.checkpoints.close()
    del engine, trainer
    end(accelerator)


def describe(trainer: Trainer) -> str:
    """Say what is trained on what; returns what a loss is to be measured against."""
    options, say = trainer.options, trainer.accelerator.print
    frequencies = torch.distributions.Categorical(trainer.training.bincount().double())
    entropy = f"unigram entropy {frequencies.entropy():.4f} nats/byte"
    sizes = f"{len(trainer.training):,} bytes + {len(trainer.validation):,} held out"
    say(f"corpus: {sizes}, {entropy}")
    say(f"model: {options.parameters:,} parameters in {options.layers} layers, {options.precision}")
    return entropy


if __name__ == "__main__":
    main(OPTIONS)  # pyright: ignore[reportPossiblyUnboundVariable] - bound above, same "if"

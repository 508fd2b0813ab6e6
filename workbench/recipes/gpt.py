"""Train a small GPT on text every machine already has: the sources of Python's standard library.

    python gpt.py --minutes 2
    torchrun --nproc-per-node 8 gpt.py --size 12 --seq-len 1024 --precision bf16 --steps 2000

Read it from top to bottom: command line, corpus, model, training. It needs torch and accelerate.
How the work is spread over processes (DDP, FSDP, DeepSpeed) is chosen outside, with `accelerate
launch`: nothing below changes with it. Everything above `import torch` needs only the standard
library, so a wrong flag is answered at once and a tool can execute that part to learn the shape.
"""

# ruff: noqa: E402 - the command line is read before torch is loaded, see above
# Accelerate has no type stubs, so whatever it returns is unknown to a strict checker.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import argparse
import collections
import math
import os
import shutil
import sys
import sysconfig
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

VOCABULARY = 256  # the model reads bytes: no tokenizer to train, to download or to get wrong


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line, without the wall of usage before it."""

    def error(self, message: str) -> NoReturn:  # noqa: D102 - overrides
        raise ValueError(message)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line and fill in what follows from it; ValueError if it cannot be."""
    home = Path(os.environ.get("WORKBENCH_RUN_DIR", ""), "checkpoints")
    parser = Parser(description="Train a small GPT.", allow_abbrev=False)
    add = parser.add_argument
    add("--size", type=int, default=2, help="N layers, 64N wide, N heads; 12 is GPT-2 small")
    add("--layers", type=int, help="number of blocks, instead of --size's")
    add("--hidden", type=int, help="width of the residual stream, instead of --size's")
    add("--heads", type=int, help="attention heads, instead of one per 64 channels")
    add("--seq-len", type=int, default=128, help="bytes per sequence")
    add("--micro-batch", type=int, default=8, help="sequences per process and micro-step")
    add("--accumulate", type=int, default=1, help="micro-steps per optimizer step")
    add("--steps", type=int, help="stop after this many optimizer steps")
    add("--minutes", type=float, help="stop after this long in the loop; 2 if no --steps")
    add("--lr", type=float, help="peak learning rate; follows the width if not given")
    add("--warmup", type=int, default=30, help="steps until the peak")
    add("--precision", choices=("fp32", "bf16", "fp16"), default="fp32")
    add("--compile", action="store_true", help="torch.compile each block")
    add("--seed", type=int, default=0, help="of the weights and of the data's order")
    add("--log-every", type=int, default=10, help="steps")
    add("--eval-every", type=int, default=100, help="steps; 0: only at the end")
    add("--checkpoint-every", type=int, default=0, help="steps; 0: never")
    add("--checkpoint-dir", type=Path, default=home, help=f"default: {home}")
    add("--resume", metavar="DIR", help="a checkpoint, or 'latest' of --checkpoint-dir")
    options = parser.parse_args(arguments)
    for name, value in vars(options).items():
        lowest = 0 if name in {"warmup", "seed", "eval_every", "checkpoint_every"} else 1e-9
        if type(value) in {int, float} and not value >= lowest:
            parser.error(f"--{name.replace('_', '-')} {value}: give a number above 0")
    options.layers = options.layers or options.size
    options.hidden = options.hidden or 64 * options.size
    options.heads = options.heads or max(1, options.hidden // 64)
    if options.hidden % (2 * options.heads):  # rotary positions pair the channels of a head
        parser.error(f"--hidden {options.hidden} is no multiple of 2 x --heads {options.heads}")
    options.minutes = options.minutes or (None if options.steps else 2.0)
    options.lr = options.lr or 4e-3 * math.sqrt(128 / options.hidden)  # wider wants smaller steps
    # What an estimate needs besides. Per block 4 h² attention + 8 h² MLP; embedding and head V h.
    options.vocab, options.mlp, options.tied = VOCABULARY, 4 * options.hidden, False
    options.parameters = 12 * options.layers * options.hidden**2 + 2 * VOCABULARY * options.hidden
    return options


def find_checkpoint(options: argparse.Namespace) -> Path | None:
    """The checkpoint to start from, if any; ValueError when asked for one that is not there."""
    whole: list[Path] = sorted(options.checkpoint_dir.glob("step-????????"))  # see Trainer.save
    if options.resume == "latest":
        return whole[-1] if whole else None
    if options.checkpoint_every and whole and not options.resume:
        raise ValueError(f"{whole[-1]} exists: add --resume latest or change --checkpoint-dir")
    chosen = Path(options.resume) if options.resume else None
    if chosen and not (chosen.is_dir() and chosen.name.removeprefix("step-").isdigit()):
        raise ValueError(f"--resume {chosen}: give an existing folder …/step-00000100, or latest")
    return chosen


if __name__ == "__main__":
    try:
        OPTIONS = parse_options()
        CHECKPOINT = find_checkpoint(OPTIONS)
    except ValueError as error:
        print(f"{Path(__file__).name}: error: {error}", file=sys.stderr)
        sys.exit(2)

import torch
from accelerate import Accelerator
from torch import Tensor, nn

CORPUS_BYTES = 12_000_000  # an upper bound, so that start-up stays short on any machine
NOT_READ = {"dist-packages", "encodings", "idlelib", "pydoc_data", "site-packages", "test", "tests"}


def read_corpus() -> tuple[Tensor, Tensor]:
    """The bytes to train on and those held out for validation, each uint8 [n]."""
    root, files = sysconfig.get_path("stdlib"), list[Path]()
    for folder, names, sources in os.walk(root):
        names[:] = set(names) - NOT_READ
        files += [Path(folder, name) for name in sources if name.endswith(".py")]
    train, held_out = bytearray(), bytearray()
    for number, path in enumerate(sorted(files)):
        if len(train) + len(held_out) < CORPUS_BYTES:  # every twentieth file is held out
            (held_out if number % 20 == 19 else train).extend(path.read_bytes())
    if len(held_out) < 100_000:
        sys.exit(f"Only {len(train)} bytes of Python sources below {root}: is it zipped?")
    return torch.frombuffer(train, dtype=torch.uint8), torch.frombuffer(held_out, dtype=torch.uint8)


def norm(x: Tensor) -> Tensor:
    """RMSNorm without gains: the matrix after it can learn them."""
    return nn.functional.rms_norm(x, (x.size(-1),))


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary positions: turn the channel pairs of x [B, heads, L, d] by angles [L, d / 2]."""
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class Block(nn.Module):
    """Attention, then an MLP, each added to the residual stream [B, L, hidden]."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.mix = nn.Linear(hidden, hidden, bias=False)
        self.up = nn.Linear(hidden, 4 * hidden, bias=False)
        self.down = nn.Linear(4 * hidden, hidden, bias=False)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        """Let every position read the earlier ones, then think for itself."""
        q, k, v = self.qkv(norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = rotate(norm(q), angles), rotate(norm(k), angles)  # normed: stable at a high lr
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(y.transpose(1, 2).flatten(2))
        return x + self.down(self.up(norm(x)).relu().square())  # ReLU²: arXiv 2109.08668


class GPT(nn.Module):
    """A decoder-only transformer over bytes."""

    def __init__(self, layers: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.head_width = hidden // heads
        self.embedding = nn.Embedding(VOCABULARY, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.head = nn.Linear(hidden, VOCABULARY, bias=False)
        for name, weight in self.named_parameters():
            # Zeros where a block ends make it start as identity, and the loss at ln 256 = 5.545.
            zero = name.endswith(("mix.weight", "down.weight", "head.weight"))
            nn.init.normal_(weight, std=0 if zero else hidden**-0.5)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss in nats per byte of predicting targets [B, L] from inputs [B, L]."""
        rates = 10_000 ** -torch.linspace(0, 1, self.head_width // 2, device=inputs.device)
        angles = torch.outer(torch.arange(inputs.size(1), device=inputs.device), rates)
        x = norm(self.embedding(inputs))
        for block in self.blocks:
            x = block(x, angles)
        logits = self.head(norm(x))
        return nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def learning_rate(step: int, options: argparse.Namespace) -> float:
    """A function of the step, never of the clock: equal flags give equal curves."""
    rate = options.lr * min(1.0, (step + 1) / max(1, options.warmup))
    if options.steps:  # the end is known: a cosine down to a tenth
        return rate * (0.55 + 0.45 * math.cos(math.pi * step / options.steps))
    # It is not: a plateau, then 1/sqrt(step), which is good wherever the time runs out.
    return rate * min(1.0, math.sqrt(10 * max(30, options.warmup) / (step + 1)))


class Trainer:
    """The model on its device(s), with what every step needs."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.accelerator = Accelerator(
            mixed_precision="no" if options.precision == "fp32" else options.precision,
            gradient_accumulation_steps=options.accumulate,
        )
        torch.manual_seed(options.seed)
        model = GPT(options.layers, options.hidden, options.heads)
        for block in model.blocks if options.compile else ():
            block.compile()  # one by one: compiled once for all, and FSDP can still shard them
        optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), fused=True)
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)

    def loss(self, data: Tensor, key: int, index: int, of: int) -> Tensor:
        """The loss on this process's part of micro-batch `index` of the `of` of step `key`.

        All processes draw the places of the whole step and take their own: the global batch depends
        neither on the number of processes nor on the past, so a resumed run sees the same data.
        """
        rank, ranks = self.accelerator.process_index, self.accelerator.num_processes
        batch, length = self.options.micro_batch, self.options.seq_len
        generator = torch.Generator().manual_seed(key % 2**32)  # the engine ignores higher bits
        starts = torch.randint(len(data) - length, (of * ranks * batch, 1), generator=generator)
        mine = starts[(index * ranks + rank) * batch :][:batch].to(data.device, non_blocking=True)
        windows = data[mine + torch.arange(length + 1, device=data.device)].long()
        return self.model(windows[:, :-1], windows[:, 1:])

    def step(self, data: Tensor, number: int) -> list[Tensor]:
        """One optimizer step; its losses stay on the device: reading one would stall the GPU."""
        losses, key = list[Tensor](), 1_000_003 * self.options.seed + number
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(number, self.options)
        for index in range(self.options.accumulate):
            with self.accelerator.accumulate(self.model):
                loss = self.loss(data, key, index, self.options.accumulate)
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.optimizer.zero_grad()
            losses.append(loss.detach())
        return losses

    def mean(self, losses: Iterable[Tensor]) -> float:
        """Over the processes too; this waits for the device."""
        return torch.as_tensor(self.accelerator.gather(torch.stack([*losses]))).mean().item()

    def evaluate(self, data: Tensor) -> float:
        """The loss on the same eight batches each time, whatever the seed of the run."""
        with torch.no_grad():
            return self.mean(self.loss(data, 0, index, 8) for index in range(8))

    def save(self, step: int) -> None:
        """Write under another name, rename when all ranks are done: what has the name is whole."""
        partial = self.options.checkpoint_dir / f"partial-{step:08d}"
        whole = partial.with_name(f"step-{step:08d}")
        self.accelerator.save_state(str(partial))
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            shutil.rmtree(whole, ignore_errors=True)
            partial.rename(whole)


def main(options: argparse.Namespace, checkpoint: Path | None) -> None:
    """Train until --steps or --minutes, whichever comes first."""
    trainer = Trainer(options)
    accelerator, say = trainer.accelerator, trainer.accelerator.print
    training, validation = (part.to(accelerator.device) for part in read_corpus())
    first = int(checkpoint.name.removeprefix("step-")) if checkpoint else 0
    if checkpoint:
        accelerator.load_state(str(checkpoint))
    tokens = options.accumulate * accelerator.num_processes * options.micro_batch * options.seq_len
    frequencies = torch.distributions.Categorical(training.bincount().double())
    entropy = f"unigram entropy {frequencies.entropy():.4f} nats/byte"
    say(f"corpus: {len(training):,} bytes + {len(validation):,} held out, {entropy}")
    say(f"model: {options.parameters:,} parameters in {options.layers} layers, {options.precision}")
    say(f"{accelerator.num_processes} processes, {tokens:,} tokens per step, from step {first}")
    recent = collections.deque[Tensor](maxlen=options.log_every * options.accumulate)
    step, ask, logged = first, first + 1, first
    begin = since = time.perf_counter()
    while not options.steps or step < options.steps:
        recent += trainer.step(training, step)
        step += 1
        if step % options.log_every == 0:
            loss, lr = trainer.mean(recent), learning_rate(step - 1, options)
            speed = tokens * (step - logged) / (time.perf_counter() - since)
            say(f"step {step:6d} | loss {loss:.4f} | lr {lr:.2e} | {speed:,.0f} tokens/s")
            logged, since = step, time.perf_counter()
        if options.eval_every and step % options.eval_every == 0:
            say(f"step {step:6d} | validation loss {trainer.evaluate(validation):.4f}")
        if options.checkpoint_every and step % options.checkpoint_every == 0:
            trainer.save(step)
        if options.minutes and step >= ask:
            # Rank 0 decides for all. Asking makes the GPU wait, so the next time is half-way there.
            elapsed = time.perf_counter() - begin
            left = (60 * options.minutes - elapsed) * (step - first) / elapsed
            left = accelerator.gather(torch.tensor([left], device=accelerator.device))[0].item()
            if left <= 0:
                break
            ask = step + int(min(max(1, left / 2), 50))
    if recent:
        say(f"final training loss {trainer.mean(recent):.4f} at step {step}")
    say(f"final validation loss {trainer.evaluate(validation):.4f}, {entropy}")
    accelerator.end_training()


if __name__ == "__main__":
    main(OPTIONS, CHECKPOINT)  # pyright: ignore[reportPossiblyUnboundVariable] - bound above, same "if"

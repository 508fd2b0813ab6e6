"""Train a small GPT on text every machine already has: the sources of Python's standard library.

    python gpt.py --minutes 2
    torchrun --nproc-per-node 8 gpt.py --size 12 --seq-len 1024 --precision bf16 --steps 2000

Read it from top to bottom: command line, corpus, model, training loop. It needs torch and
accelerate, nothing else. How training is spread over processes (DDP, FSDP, DeepSpeed) is chosen
outside, by `accelerate launch`: nothing below changes with it.

Everything above `import torch` needs the standard library alone. So a wrong flag is answered at
once, and a tool can execute just that part to learn the model's shape without loading torch.
"""

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
MAY_BE_ZERO = {"warmup", "seed", "eval_every", "checkpoint_every"}


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line, without the wall of usage before it."""

    def error(self, message: str) -> NoReturn:
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
    add("--micro-batch", type=int, default=16, help="sequences per process and micro-step")
    add("--accumulate", type=int, default=1, help="micro-steps per optimizer step")
    add("--steps", type=int, help="stop after this many optimizer steps")
    add("--minutes", type=float, help="stop after this time; 2 if --steps is not given")
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
        if type(value) in {int, float} and not (value > 0 or (value == 0 and name in MAY_BE_ZERO)):
            parser.error(f"--{name.replace('_', '-')} {value}: give a number above 0")
    options.layers = options.layers or options.size
    options.hidden = options.hidden or 64 * options.size
    options.heads = options.heads or max(1, options.hidden // 64)
    if options.hidden % (2 * options.heads):  # rotary positions pair the channels of a head
        parser.error(
            f"--hidden {options.hidden} with --heads {options.heads}: the width must be a "
            f"multiple of 2 x heads = {2 * options.heads}"
        )
    if not options.steps and not options.minutes:
        options.minutes = 2.0
    options.lr = options.lr or 4e-3 * math.sqrt(128 / options.hidden)  # wider wants smaller steps
    return options


def model_shape(options: argparse.Namespace) -> dict[str, int | bool]:
    """What an estimate needs to know of the model that these options make."""
    layers, hidden = options.layers, options.hidden
    shape = {"layers": layers, "hidden": hidden, "heads": options.heads, "vocab": VOCABULARY}
    # Per block 4 h² attention and 8 h² MLP; V h embedding, V h head; no biases, no gains.
    parameters = 12 * layers * hidden**2 + 2 * VOCABULARY * hidden
    return {**shape, "mlp": 4 * hidden, "tied": False, "parameters": parameters}


def find_checkpoint(options: argparse.Namespace) -> Path | None:
    """The checkpoint to start from, if any; ValueError when asked for one that is not there."""
    whole = sorted(options.checkpoint_dir.glob("step-????????"))  # see save_checkpoint
    if options.resume is None and options.checkpoint_every and whole:
        raise ValueError(
            f"{whole[-1]} is an earlier run's: give --resume latest or another --checkpoint-dir"
        )
    if options.resume in {None, "latest"}:
        return whole[-1] if options.resume and whole else None
    chosen = Path(options.resume)
    if not chosen.is_dir() or not chosen.name.removeprefix("step-").isdigit():
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
from accelerate.utils import broadcast
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everyone knows it by

# --- The corpus --------------------------------------------------------------------------------

CORPUS_BYTES = 12_000_000  # an upper bound, so that start-up stays short on any machine
SKIPPED = set(  # not part of every Python, or tables rather than programs
    "__pycache__ dist-packages encodings idlelib lib2to3 pydoc_data site-packages test tests "
    "turtledemo".split()
)


def read_corpus() -> tuple[Tensor, Tensor]:
    """The bytes to train on and those held out for validation, each uint8 [n]."""
    root, files = sysconfig.get_path("stdlib"), list[Path]()
    for folder, names, sources in os.walk(root):
        names[:] = set(names) - SKIPPED
        files += [Path(folder, name) for name in sources if name.endswith(".py")]
    parts = bytearray(), bytearray()
    for number, path in enumerate(sorted(files)):
        if len(parts[0]) + len(parts[1]) < CORPUS_BYTES:
            parts[number % 20 == 19].extend(path.read_bytes())  # whole files are held out
    if len(parts[1]) < 100_000:
        sys.exit(f"Only {len(parts[0])} bytes of Python sources below {root}: is it zipped?")
    return torch.frombuffer(parts[0], dtype=torch.uint8), torch.frombuffer(
        parts[1], dtype=torch.uint8
    )


def unigram_entropy(data: Tensor) -> float:
    """Nats per byte that are left when nothing but the bytes' frequencies is known."""
    share = data.bincount(minlength=VOCABULARY).double() / len(data)
    return torch.special.entr(share).sum().item()


def draw(data: Tensor, length: int, key: int, total: int, part: slice) -> tuple[Tensor, Tensor]:
    """Inputs and targets [n, length]: those windows `part` of the `total` that `key` stands for.

    Every process draws all the places and takes its own. So the global batch of a step depends
    neither on how many processes share it nor on the past: resumed runs see the same data.
    """
    generator = torch.Generator().manual_seed(key % 2**32)  # the engine ignores higher bits
    starts = torch.randint(len(data) - length, (total,), generator=generator)[part]
    places = starts.to(data.device)[:, None] + torch.arange(length + 1, device=data.device)
    windows = data[places].long()
    return windows[:, :-1], windows[:, 1:]


# --- The model ---------------------------------------------------------------------------------


def norm(x: Tensor) -> Tensor:
    """RMSNorm without gains: the matrix after it can learn them."""
    return F.rms_norm(x, (x.size(-1),))


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
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(norm(x)), approximate="tanh"))


class GPT(nn.Module):
    """A decoder-only transformer over bytes."""

    def __init__(self, layers: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.head_width = hidden // heads
        self.embedding = nn.Embedding(VOCABULARY, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.head = nn.Linear(hidden, VOCABULARY, bias=False)
        for name, weight in self.named_parameters():
            if name.endswith(("mix.weight", "down.weight", "head.weight")):
                nn.init.zeros_(weight)  # each block starts as identity, the loss at ln 256 = 5.545
            elif name != "embedding.weight":
                nn.init.normal_(weight, std=hidden**-0.5)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss in nats per byte of predicting targets [B, L] from inputs [B, L]."""
        rates = 10_000 ** -torch.linspace(0, 1, self.head_width // 2, device=inputs.device)
        angles = torch.outer(torch.arange(inputs.size(1), device=inputs.device), rates)
        x = norm(self.embedding(inputs))
        for block in self.blocks:
            x = block(x, angles)
        logits = self.head(norm(x))
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


# --- Training ----------------------------------------------------------------------------------


def learning_rate(step: int, options: argparse.Namespace) -> float:
    """A function of the step, never of the clock, so that equal flags give equal curves.

    With --steps the end is known: cosine down to a tenth. With --minutes alone it is not: a
    plateau of ten warm-ups, then 1/sqrt(step), which is good wherever it is cut off.
    """
    warm = min(1.0, (step + 1) / max(1, options.warmup))
    if options.steps:
        return options.lr * warm * (0.55 + 0.45 * math.cos(math.pi * step / options.steps))
    return options.lr * warm * min(1.0, math.sqrt(10 * max(30, options.warmup) / (step + 1)))


def save_checkpoint(accelerator: Accelerator, folder: Path, step: int) -> None:
    """Write under another name, rename when all ranks are done: what has the name is whole."""
    partial = folder / f"partial-{step:08d}"
    accelerator.save_state(str(partial))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        shutil.rmtree(whole := folder / f"step-{step:08d}", ignore_errors=True)
        partial.rename(whole)


def main(options: argparse.Namespace, checkpoint: Path | None) -> None:
    """Train until --steps or --minutes, whichever comes first."""
    begin = time.perf_counter()
    precision = "no" if options.precision == "fp32" else options.precision
    accelerator = Accelerator(
        gradient_accumulation_steps=options.accumulate, mixed_precision=precision
    )
    ranks, rank, batch = accelerator.num_processes, accelerator.process_index, options.micro_batch
    torch.manual_seed(options.seed)
    training, validation = (part.to(accelerator.device) for part in read_corpus())
    model = GPT(options.layers, options.hidden, options.heads)
    count = sum(weight.numel() for weight in model.parameters())
    for block in model.blocks if options.compile else ():
        block.compile()  # by block: compiled once for all of them, and FSDP can still shard them
    fused = accelerator.device.type == "cuda"  # one kernel for all weights instead of hundreds
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=(0.9, 0.95), weight_decay=0.1, fused=fused
    )
    model, optimizer = accelerator.prepare(model, optimizer)
    first = int(checkpoint.name.removeprefix("step-")) if checkpoint else 0
    if checkpoint:
        accelerator.load_state(str(checkpoint))
    bytes_per_step = options.accumulate * ranks * batch * options.seq_len
    entropy = f"unigram entropy {unigram_entropy(training):.4f} nats/byte"
    accelerator.print(
        f"corpus: {len(training):,} bytes + {len(validation):,} held out, {entropy}\n"
        f"model: {count:,} parameters, {options.layers} layers, {options.hidden} wide\n"
        f"{ranks} processes, {bytes_per_step:,} bytes per step, {options.precision}, step {first}"
    )

    def loss_of(data: Tensor, key: int, index: int, of: int) -> Tensor:
        start = (index * ranks + rank) * batch  # the same order for any number of processes
        part = slice(start, start + batch)
        return model(*draw(data, options.seq_len, key, of * ranks * batch, part))

    def mean(losses: Iterable[Tensor]) -> float:  # waits for the GPU and for all ranks
        return accelerator.reduce(torch.stack([*losses]).mean(), "mean").item()

    def evaluate() -> float:
        with torch.no_grad():
            return mean(loss_of(validation, key=0, index=index, of=8) for index in range(8))

    # Losses stay on the device until a log line needs them: reading each would stall the GPU.
    recent = collections.deque[Tensor](maxlen=options.log_every * options.accumulate)
    step, ask, logged, since = first, first + 1, first, time.perf_counter()
    while not options.steps or step < options.steps:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, options)
        for index in range(options.accumulate):
            with accelerator.accumulate(model):
                loss = loss_of(training, options.seed * 1_000_003 + step, index, options.accumulate)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            recent.append(loss.detach())
        step += 1

        if step % options.log_every == 0:
            value, rate = mean(recent), optimizer.param_groups[0]["lr"]
            speed = bytes_per_step * (step - logged) / (time.perf_counter() - since)
            accelerator.print(
                f"step {step:6d} | loss {value:.4f} | lr {rate:.2e} | {speed:,.0f} tokens/s"
            )
            logged, since = step, time.perf_counter()
        if options.eval_every and step % options.eval_every == 0:
            accelerator.print(f"step {step:6d} | validation loss {evaluate():.4f}")
        if options.checkpoint_every and step % options.checkpoint_every == 0:
            save_checkpoint(accelerator, options.checkpoint_dir, step)
        if options.minutes and step >= ask:
            # The main process decides and tells the others, so that all stop at the same step.
            # Asking makes the GPU wait, so the next question comes after half the steps left.
            elapsed = time.perf_counter() - begin
            left = (60 * options.minutes - elapsed) * (step - first) / elapsed
            left = broadcast(torch.tensor(left, device=accelerator.device)).item()
            if left < 1:
                break
            ask = step + int(min(max(1, left / 2), 50))

    if recent:
        accelerator.print(f"final training loss {mean(recent):.4f} (mean of the last steps)")
    accelerator.print(f"final validation loss {evaluate():.4f}; {entropy}")
    accelerator.end_training()


if __name__ == "__main__":
    main(OPTIONS, CHECKPOINT)

"""Train an image classifier, a small ViT or a ResNet, on shapes that are drawn as they are needed.

    python vision.py --steps 100
    torchrun --nproc-per-node 8 vision.py --arch resnet --channels-last --precision bf16 --image 64

Each image is a function of its number alone: eight kinds of shape in any place, size and colour,
under noise. Nothing is downloaded, and any process can draw any image. It needs torch, accelerate
and the files beside it; DDP and FSDP are chosen outside, with `accelerate launch`. Everything above
`import torch` needs only the standard library, see gpt.py.
"""

# ruff: noqa: E402 - the command line is read before torch is loaded, see above
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import argparse
from collections.abc import Sequence

from recipe_options import (
    Parser,
    add_checkpoints,
    check_checkpoints,
    check_positive,
    learning_rate,
    options_or_exit,
    with_checkpoint,
)

HELD_OUT = 1000  # images numbered after the training ones


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line and fill in what follows from it; ValueError if it cannot be."""
    parser = Parser(description="Train an image classifier.", allow_abbrev=False)
    add = parser.add_argument
    add("--arch", choices=("vit", "resnet"), default="vit")
    add("--size", type=int, default=2, help="ViT: 2N blocks, 32N wide; ResNet: N per stage")
    add("--image", type=int, default=32, help="pixels per side")
    add("--patch", type=int, default=4, help="ViT: pixels per side of a patch")
    add("--images", type=int, default=20_000, help="images in one epoch")
    add("--micro-batch", type=int, default=32, help="images per process and micro-step")
    add("--accumulate", type=int, default=1, help="micro-steps per optimizer step")
    add("--steps", type=int, default=100, help="optimizer steps")
    add("--lr", type=float, default=1e-3, help="peak learning rate")
    add("--warmup", type=int, default=10, help="steps until the peak learning rate")
    add("--precision", choices=("fp32", "bf16", "fp16"), default="fp32")
    add("--channels-last", action="store_true", help="ResNet: memory layout for tensor cores")
    add("--compile", action="store_true", help="torch.compile each block")
    add("--seed", type=int, default=0, help="seed of the weights and the image order")
    add("--log-every", type=int, default=10, help="steps between printed lines")
    add_checkpoints(parser)
    options = parser.parse_args(arguments)
    check_positive(parser, options, {"warmup", "seed", "checkpoint_every"})
    check_checkpoints(parser, options)
    if options.arch == "vit" and options.image % options.patch:
        parser.error(f"--image {options.image} is not a multiple of --patch {options.patch}")
    if options.arch == "resnet" and options.image % 4:
        parser.error(f"--image {options.image} is not a multiple of 4: a ResNet halves it twice")
    # What others ask of every recipe; images have no layers of tokens that an estimate would know.
    for name in ("layers", "hidden", "heads", "vocab", "mlp", "tied", "parameters"):
        setattr(options, name, None)
    options.seq_len = options.minutes = None
    return options


if __name__ == "__main__":
    OPTIONS = options_or_exit(lambda: with_checkpoint(parse_options))

import torch
from accelerate import Accelerator
from checkpointing import Checkpoints
from ending import end
from epoch_order import EpochOrder, positions
from library_state import prepare
from live_requests import asked_to
from samples import tell
from shapes import CLASSES, draw
from skipped_data import data_step, skipped_ranges
from torch import Tensor, nn


class Block(nn.Module):
    """A residual block, whatever its branches are: what a ViT and a ResNet have in common."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        """Each branch adds to what it reads."""
        for branch in self.branches:
            x = x + branch(x)
        return x


class Attention(nn.Module):
    """Every patch reads every patch."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Of x [B, patches, width]."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.mix(y.transpose(1, 2).flatten(2))


class ViT(nn.Module):
    """A vision transformer (arXiv 2010.11929); the mean of the patches replaces its class token."""

    def __init__(self, size: int, side: int, patch: int) -> None:
        super().__init__()
        width = 32 * size
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.places = nn.Parameter(0.02 * torch.randn((side // patch) ** 2, width))
        self.blocks = nn.ModuleList(
            Block(
                nn.Sequential(nn.LayerNorm(width), Attention(width, size)),
                nn.Sequential(
                    *(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU()),
                    nn.Linear(4 * width, width),
                ),
            )
            for _ in range(2 * size)
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, CLASSES))

    def forward(self, images: Tensor) -> Tensor:
        """Logits [B, classes]."""
        x = self.patches(images).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class ResNet(nn.Module):
    """Pre-activation residual blocks (arXiv 1603.05027) in three stages, each half as wide a view.

    GroupNorm instead of BatchNorm: a BatchNorm sees its own process's images only, so the curve
    would depend on how many processes share the batch (or need SyncBatchNorm's extra exchange).
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        stages: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1)]
        for stage, width in enumerate((32, 64, 128)):
            if stage:
                stages.append(nn.Conv2d(width // 2, width, 3, stride=2, padding=1))
            stages += [Block(self._branch(width)) for _ in range(size)]
        self.blocks = nn.ModuleList(stages)
        self.head = nn.Linear(128, CLASSES)

    @staticmethod
    def _branch(width: int) -> nn.Module:
        return nn.Sequential(
            *(nn.GroupNorm(8, width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)),
            *(nn.GroupNorm(8, width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits [B, classes]."""
        x = images
        for block in self.blocks:
            x = block(x)
        return self.head(x.relu().mean((2, 3)))


class Trainer:
    """A model on its device(s), and which images each process sees."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.accelerator = Accelerator(
            mixed_precision="no" if options.precision == "fp32" else options.precision,
            gradient_accumulation_steps=options.accumulate,
        )
        torch.manual_seed(options.seed)  # every process draws the same weights
        vit = options.arch == "vit"
        model = ViT(options.size, options.image, options.patch) if vit else ResNet(options.size)
        if options.channels_last:
            model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue] - a gap in torch's stubs
        for block in (part for part in model.blocks if options.compile):
            block.compile()
        optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05, fused=True)
        prepared = prepare(self.accelerator, model, optimizer, options)
        self.model, self.optimizer, self.store = prepared

    def numbers(self, step: int) -> list[list[int]]:
        """This process's images of each micro-step: epochs are shuffled, ranks never overlap."""
        options, accelerator = self.options, self.accelerator
        order = EpochOrder(options.images, options.seed)
        rows = positions(
            data_step(step, skipped_ranges()),
            size=options.micro_batch,
            accumulate=options.accumulate,
            rank=accelerator.process_index,
            ranks=accelerator.num_processes,
        )
        return [[order[position] for position in row] for row in rows]

    def logits(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """What the model says of these images, and what they are."""
        images, kinds = (
            part.to(self.accelerator.device) for part in draw(numbers, self.options.image)
        )
        if self.options.channels_last:
            images = images.to(memory_format=torch.channels_last)
        return self.model(images).float(), kinds

    def step(self, number: int) -> Tensor:
        """One optimizer step; the mean loss and the hits of this process's images, [2]."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(number, self.options)
        results = list[Tensor]()
        for numbers in self.numbers(number):
            with self.accelerator.accumulate(self.model):
                logits, kinds = self.logits(numbers)
                loss = nn.functional.cross_entropy(logits, kinds)
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.optimizer.zero_grad()
            hits = (logits.argmax(-1) == kinds).float().mean()
            results.append(torch.stack((loss.detach(), hits)))
        return torch.stack(results).mean(0)

    @torch.no_grad()
    def evaluate(self) -> tuple[int, int]:
        """Right answers and images of the held-out ones: each is looked at once, by one process."""
        at, ranks = self.accelerator.process_index, self.accelerator.num_processes
        first, count = self.options.images, torch.zeros(2, device=self.accelerator.device)
        # All processes make equally many forward passes, or sharded ones would wait forever.
        for begin in range(0, HELD_OUT, 100 * ranks):
            numbers = range(first + begin + at, min(first + HELD_OUT, first + begin + 100 * ranks))
            mine = numbers[::ranks]
            logits, kinds = self.logits(mine or [first])
            hits = (logits.argmax(-1) == kinds).sum() if mine else torch.zeros_like(count[0])
            count += torch.stack((hits, torch.full_like(hits, len(mine))))
        right, seen = torch.as_tensor(self.accelerator.reduce(count, "sum")).long().tolist()
        return right, seen


def main(options: argparse.Namespace) -> None:
    """Train, then look at images that were held out."""
    trainer = Trainer(options)
    accelerator, say = trainer.accelerator, trainer.accelerator.print
    checkpoints = Checkpoints(options, accelerator, trainer.store)
    first = checkpoints.first
    say(f"{options.arch}, {options.precision}, {CLASSES} classes: chance is {1 / CLASSES:.1%}")
    say(f"{accelerator.num_processes} processes, from step {first}")
    for step in range(first, options.steps):
        result = trainer.step(step)
        if (step + 1) % options.log_every == 0 or step + 1 == options.steps:
            loss, hits = torch.as_tensor(accelerator.reduce(result, "mean")).tolist()
            lr = learning_rate(step, options)
            say(f"step {step + 1:6d} | loss {loss:.4f} | accuracy {hits:.1%} | lr {lr:.2e}")
        if asked_to("evaluate"):
            right, seen = trainer.evaluate()
            tell(step + 1, eval_accuracy=right / seen)
            say(f"step {step + 1:6d} | held-out accuracy {right / seen:.1%} of {seen} images")
        if checkpoints.due(step + 1):
            loss = torch.as_tensor(accelerator.reduce(result, "mean"))[0].item()
            checkpoints.save(step + 1, loss)
    right, seen = trainer.evaluate()
    say(f"held-out accuracy {right / seen:.1%} of {seen} images")
    checkpoints.close()
    del trainer, checkpoints
    end(accelerator)


if __name__ == "__main__":
    main(OPTIONS)  # pyright: ignore[reportPossiblyUnboundVariable] - bound above, same "if"

"""Train a click model like DLRM (arXiv 1906.00091): tables of embeddings and MLPs, on made clicks.

    python recsys.py --steps 200
    torchrun --nproc-per-node 8 recsys.py --rows 1000000 --dim 64 --width 512 --micro-batch 4096

Each example is a function of its number alone, see clicks.py, and seen once, as click models are
trained; the lowest loss that is possible is known and printed. Nothing is downloaded. It needs
torch, accelerate and the files beside it; DDP and FSDP (which shards the tables) are chosen
outside, with `accelerate launch`. Everything above `import torch` needs only the standard library,
see gpt.py.
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

HELD_OUT = 4096  # examples with negative numbers


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line and fill in what follows from it; ValueError if it cannot be."""
    parser = Parser(description="Train a click model.", allow_abbrev=False)
    add = parser.group("model")
    add("--fields", type=int, default=4, help="categorical features: one table each")
    add("--rows", type=int, default=100, help="values of a field: rows of its table")
    add("--dense", type=int, default=8, help="numeric features")
    add("--dim", type=int, default=16, help="width of an embedding")
    add("--width", type=int, default=64, help="width of the MLPs")
    add = parser.group("batch")
    add("--micro-batch", type=int, default=512, help="examples per process and micro-step")
    add("--accumulate", type=int, default=1, help="micro-steps per optimizer step")
    add = parser.group("schedule")
    add("--steps", type=int, default=200, help="optimizer steps")
    add("--lr", type=float, default=2e-2, help="peak learning rate")
    add("--warmup", type=int, default=10, help="steps until the peak learning rate")
    add = parser.group("precision")
    add("--precision", choices=("fp32", "bf16"), default="fp32")
    add = parser.group("evaluation and output")
    add("--seed", type=int, default=0, help="seed of the weights")
    add("--log-every", type=int, default=10, help="steps between printed lines")
    add("--eval-every", type=int, default=0, help="steps between evaluations; 0: at the end")
    add_checkpoints(parser)
    options = parser.parse_args(arguments)
    check_positive(parser, options, {"warmup", "seed", "checkpoint_every", "eval_every"})
    check_checkpoints(parser, options)
    # What others ask of every recipe; there are no layers of tokens that an estimate would know.
    for name in ("layers", "hidden", "heads", "vocab", "mlp", "tied", "seq_len", "minutes"):
        setattr(options, name, None)
    options.parameters = parameters(options)
    return options


def parameters(options: argparse.Namespace) -> int:
    """Of the tables, the bottom MLP and the top one."""
    dim, width, fields = options.dim, options.width, options.fields
    pairs = (fields + 1) * fields // 2
    bottom = (options.dense + 1) * width + (width + 1) * dim
    top = (pairs + dim + 1) * width + (width + 1) * width + width + 1
    return fields * options.rows * dim + bottom + top


if __name__ == "__main__":
    OPTIONS = options_or_exit(lambda: with_checkpoint(parse_options))

import torch
from accelerate import Accelerator
from checkpointing import Checkpoints
from clicks import draw, floor_and_chance
from ending import end
from library_state import prepare
from live_requests import asked_to
from samples import tell
from skipped_data import data_step, skipped_ranges
from torch import Tensor, nn


class Table(nn.Module):
    """The embeddings of one field."""

    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        self.rows = nn.Embedding(rows, dim)
        nn.init.normal_(self.rows.weight, std=dim**-0.5)

    def forward(self, values: Tensor) -> Tensor:
        """Of values [B]: [B, dim]."""
        return self.rows(values)


class ClickModel(nn.Module):
    """Dense features through an MLP, values through tables, their inner products into another."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        dim, width, fields = options.dim, options.width, options.fields
        self.tables = nn.ModuleList(Table(options.rows, dim) for _ in range(fields))
        self.bottom = nn.Sequential(
            *(nn.Linear(options.dense, width), nn.ReLU(), nn.Linear(width, dim))
        )
        pairs = (fields + 1) * fields // 2
        self.top = nn.Sequential(
            *(nn.Linear(pairs + dim, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()),
            nn.Linear(width, 1),
        )
        self.fields = fields

    def forward(self, values: Tensor, dense: Tensor) -> Tensor:
        """Logits [B] of values [B, fields] and dense features [B, D]."""
        bottom = self.bottom(dense)
        rows = [table(values[:, at]) for at, table in enumerate(self.tables)]
        vectors = torch.stack([bottom, *rows], 1)
        products = vectors @ vectors.transpose(1, 2)
        first, second = torch.triu_indices(self.fields + 1, self.fields + 1, 1)
        return self.top(torch.cat([bottom, products[:, first, second]], 1)).squeeze(1)


class Trainer:
    """A model on its device(s), and which examples each process sees."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.accelerator = Accelerator(
            mixed_precision="no" if options.precision == "fp32" else options.precision,
            gradient_accumulation_steps=options.accumulate,
        )
        torch.manual_seed(options.seed)  # every process draws the same weights
        model = ClickModel(options)
        optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0, fused=True)
        prepared = prepare(self.accelerator, model, optimizer, options)
        self.model, self.optimizer, self.store = prepared

    def loss(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """The mean loss on these examples, and the chances of their clicks."""
        options, device = self.options, self.accelerator.device
        values, dense, clicks, chances = draw(numbers, options.fields, options.rows, options.dense)
        logits = self.model(values.to(device), dense.to(device)).float()
        loss = nn.functional.binary_cross_entropy_with_logits(logits, clicks.to(device))
        return loss, chances

    def numbers(self, step: int) -> list[Tensor]:
        """This process's examples of each micro-step: the batch is the same for any ranks."""
        ranks, size = self.accelerator.num_processes, self.options.micro_batch
        each = self.options.accumulate * ranks * size
        first = data_step(step, skipped_ranges()) * each
        rows = torch.arange(first, first + each).view(-1, size)
        return list(rows[self.accelerator.process_index :: ranks])

    def step(self, number: int) -> Tensor:
        """One optimizer step; the mean loss of this process's examples."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(number, self.options)
        losses = list[Tensor]()
        for numbers in self.numbers(number):
            with self.accelerator.accumulate(self.model):
                loss, _ = self.loss(numbers)
                self.accelerator.backward(loss)
                self.optimizer.step()
                self.optimizer.zero_grad()
            losses.append(loss.detach())
        return torch.stack(losses).mean()

    @torch.no_grad()
    def evaluate(self, step: int) -> None:
        """The loss on held-out examples, beside what is possible: every process has its part."""
        ranks = self.accelerator.num_processes
        each = HELD_OUT // ranks
        first = -HELD_OUT + self.accelerator.process_index * each
        loss, chances = self.loss(torch.arange(first, first + each))
        every = torch.as_tensor(self.accelerator.gather(chances.to(loss.device))).cpu()
        mean = torch.as_tensor(self.accelerator.reduce(loss, "mean")).item()
        lowest, chance = floor_and_chance(every)
        tell(step, eval_loss=mean, eval_loss_above_floor=mean - lowest)
        self.accelerator.print(
            f"step {step:6d} | held-out loss {mean:.4f} nats; lowest possible {lowest:.4f}, "
            f"share of clicks alone {chance:.4f}"
        )


def main(options: argparse.Namespace) -> None:
    """Train, then look at examples that were held out."""
    trainer = Trainer(options)
    accelerator, say = trainer.accelerator, trainer.accelerator.print
    checkpoints = Checkpoints(options, accelerator, trainer.store)
    first = checkpoints.first
    say(f"{options.parameters:,} parameters, {options.fields} tables of {options.rows:,} rows")
    say(f"{accelerator.num_processes} processes, from step {first}")
    for step in range(first, options.steps):
        result, every = trainer.step(step), options.eval_every
        if (step + 1) % options.log_every == 0 or step + 1 == options.steps:
            loss = torch.as_tensor(accelerator.reduce(result, "mean")).item()
            say(f"step {step + 1:6d} | loss {loss:.4f} | lr {learning_rate(step, options):.2e}")
        if asked_to("evaluate") or (every and (step + 1) % every == 0):
            trainer.evaluate(step + 1)
        if checkpoints.due(step + 1):
            loss = torch.as_tensor(accelerator.reduce(result, "mean")).item()
            checkpoints.save(step + 1, loss)
    trainer.evaluate(options.steps)
    checkpoints.close()
    del trainer, checkpoints
    end(accelerator)


if __name__ == "__main__":
    main(OPTIONS)  # pyright: ignore[reportPossiblyUnboundVariable] - bound above, same "if"

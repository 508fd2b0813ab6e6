"""Fine-tune a Hugging Face language model on instructions: LoRA, QLoRA, or all of its weights.

    python lora.py --steps 100
    torchrun --nproc-per-node 8 lora.py --model Qwen/Qwen3-0.6B --qlora --precision bf16

Without --model it makes a small Llama from a config, so nothing is downloaded. It learns to write
the docstring of a function from its signature, on the standard library's own functions; the loss
counts the answer's tokens only. It needs torch, accelerate, transformers, peft (--qlora: also
bitsandbytes) and the files beside it. DDP, FSDP and DeepSpeed are chosen outside, with `accelerate
launch`. Everything above `import torch` needs only the standard library, see gpt.py.
"""

# ruff: noqa: E402 - the command line is read before torch is loaded, see above
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recipe_options import (
    Parser,
    add_checkpoints,
    check_checkpoints,
    check_positive,
    learning_rate,
    local,
    options_or_exit,
    with_checkpoint,
)

VOCABULARY = 258  # bytes and two marks, see pairs.py
TARGETS = ("q", "k", "v", "o", "gate", "up", "down")  # what a Llama calls q_proj, k_proj, …


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line and fill in what follows from it; ValueError if it cannot be."""
    parser = Parser(description="Fine-tune a language model with LoRA.", allow_abbrev=False)
    add = parser.add_argument
    add(
        "--model",
        type=local,
        help="a Hugging Face model's folder or name; default: a small random Llama",
    )
    add("--size", type=int, default=2, help="without --model: N layers, 64N wide, N heads")
    add("--lora-rank", type=int, default=8, help="0: train all weights")
    add("--lora-targets", default="q,k,v,o,gate,up,down", help="linear layers with adapters")
    add("--qlora", action="store_true", help="freeze the base model in 4 bits (nf4)")
    add("--seq-len", type=int, default=192, help="longer pairs are skipped")
    add("--micro-batch", type=int, default=8, help="pairs per process and micro-step")
    add("--accumulate", type=int, default=1, help="micro-steps per optimizer step")
    add("--steps", type=int, default=100, help="optimizer steps")
    add("--lr", type=float, help="peak learning rate; 2e-3 for adapters, 1e-3 for all weights")
    add("--warmup", type=int, default=10, help="steps until the peak learning rate")
    add("--precision", choices=("fp32", "bf16", "fp16"), default="fp32")
    add("--seed", type=int, default=0, help="seed of the weights and the data order")
    add("--log-every", type=int, default=10, help="steps between printed lines")
    add_checkpoints(parser)
    options = parser.parse_args(arguments)
    check_positive(parser, options, {"lora_rank", "warmup", "seed", "checkpoint_every"})
    check_checkpoints(parser, options)
    if options.qlora and not options.lora_rank:
        parser.error("--qlora --lora-rank 0: 4-bit weights cannot be trained; give a rank")
    options.lora_targets = tuple(options.lora_targets.split(","))
    if unknown := set(options.lora_targets) - set(TARGETS):
        parser.error(f"--lora-targets {min(unknown)!r}: choose from {','.join(TARGETS)}")
    options.lr = options.lr or (2e-3 if options.lora_rank else 1e-3)
    options.minutes = None  # the steps are always known
    options.quantization = "nf4" if options.qlora else "none"
    _shape(options)
    return options


def _shape(options: argparse.Namespace) -> None:
    """What an estimate needs besides; None throughout for a model known by its name only."""
    size = options.size
    config: dict[str, Any] = {
        "num_hidden_layers": size,
        "hidden_size": 64 * size,
        "num_attention_heads": size,
        "num_key_value_heads": max(1, size // 2),
        "intermediate_size": 172 * size,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": False,
    }
    if options.model:
        file = Path(options.model, "config.json")
        config = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    options.config = config
    options.layers, options.hidden = config.get("num_hidden_layers"), config.get("hidden_size")
    options.heads = config.get("num_attention_heads")
    options.kv_heads = config.get("num_key_value_heads", options.heads)
    options.head_dim = config.get("head_dim")
    options.mlp, options.vocab = config.get("intermediate_size"), config.get("vocab_size")
    options.tied, options.gated_mlp = config.get("tie_word_embeddings", False), True
    h, m, kv = 64 * size, 172 * size, 64 * max(1, size // 2)
    block = 2 * h * h + 2 * h * kv + 3 * h * m + 2 * h  # q and o, k and v, the MLP, two norms
    options.parameters = None if options.model else size * block + h + 2 * VOCABULARY * h


if __name__ == "__main__":
    OPTIONS = options_or_exit(lambda: with_checkpoint(parse_options))

import torch
from accelerate import Accelerator
from checkpointing import Checkpoints
from dtypes import DTYPES
from ending import end
from library_state import prepare
from pairs import END, PADDING, collate, encoded_pairs
from peft import LoraConfig, get_peft_model
from quantized import keep_scales, nf4
from safetensors.torch import save_file
from skipped_data import data_step, skipped_ranges
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM


def make_model(options: argparse.Namespace) -> nn.Module:
    """The base model, quantized and frozen or not, with adapters or without."""
    torch.manual_seed(options.seed)  # every process draws the same weights and adapters
    name, dtype = options.model, base_dtype(options)
    four_bits = nf4(dtype) if options.qlora else {}
    model: Any = None
    with tempfile.TemporaryDirectory() as folder:
        if not name:
            config = LlamaConfig(**options.config, eos_token_id=END, pad_token_id=PADDING)
            if not options.qlora:
                model = AutoModelForCausalLM.from_config(config, dtype=dtype)
            else:  # quantized while it loads, so it is saved first: whole, which ZeRO-3's are not
                full_model: Any = LlamaForCausalLM(config)
                config.save_pretrained(folder)
                save_file(
                    full_model.to(dtype).state_dict(),
                    Path(folder, "model.safetensors"),
                    {"format": "pt"},
                )
                name = folder
        if name:
            model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, **four_bits)
            keep_scales(model)
    if not options.lora_rank:
        return model
    adapters = LoraConfig(
        task_type="CAUSAL_LM",
        r=options.lora_rank,
        lora_alpha=2 * options.lora_rank,
        target_modules=[f"{target}_proj" for target in options.lora_targets],
    )
    return get_peft_model(model, adapters)  # the adapters in fp32 whatever the base has


def base_dtype(options: argparse.Namespace) -> torch.dtype:
    """Of the base model's weights: as computed with where they are frozen.

    Trained weights (--lora-rank 0) are fp32 and autocast computes in half precision: updates are
    smaller than what bf16 can add. A frozen one is never updated, and fp32 would double its bytes.
    """
    return DTYPES[options.precision] if options.lora_rank else torch.float32


class Trainer:
    """The model on its device(s), the data, and the steps between them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.accelerator = Accelerator(
            mixed_precision="no" if options.precision == "fp32" else options.precision,
            gradient_accumulation_steps=options.accumulate,
        )
        self.pairs, self.padding = encoded_pairs(options.model, options.seq_len)
        if not self.pairs:
            sys.exit(f"--seq-len {options.seq_len}: no pair is so short. Give a longer one.")
        model = make_model(options)
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        self.trained = sum(map(Tensor.numel, trained))
        optimizer = torch.optim.AdamW(trained, betas=(0.9, 0.95), weight_decay=0.0)
        prepared = prepare(self.accelerator, model, optimizer, options)
        self.model, self.optimizer, self.store = prepared

    def batches(self, step: int) -> list[dict[str, Tensor]]:
        """This process's micro-batches; the step's pairs do not depend on who trains on them."""
        at, ranks = self.accelerator.process_index, self.accelerator.num_processes
        size, of = self.options.micro_batch, self.options.accumulate
        key = 1_000_003 * self.options.seed + data_step(step, skipped_ranges())
        generator = torch.Generator().manual_seed(key)
        places = torch.randint(len(self.pairs), (of, ranks, size), generator=generator)
        return [
            {name: part.to(self.accelerator.device) for name, part in batch.items()}
            for batch in (
                collate([self.pairs[place] for place in row], self.padding)
                for row in places[:, at].tolist()
            )
        ]

    def step(self, number: int) -> Tensor:
        """One optimizer step; the mean loss per answer token of this process's part of it.

        Answers differ in length, so the mean of the micro-batches' means is not the mean over the
        tokens: short answers would count too much, and the result would depend on the number of
        ranks and micro-steps (transformers did so until 4.46). All is divided by the tokens of the
        whole step instead, and multiplied by what DDP and Accelerate will divide by.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(number, self.options)
        batches, accelerator = self.batches(number), self.accelerator
        counts = torch.stack([(batch["labels"][:, 1:] != -100).sum() for batch in batches])
        tokens = torch.as_tensor(accelerator.reduce(counts.sum(), "sum"))
        factor = accelerator.num_processes * self.options.accumulate / tokens
        losses = list[Tensor]()
        for batch in batches:
            with accelerator.accumulate(self.model):
                loss = self.summed_loss(batch) * factor
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.optimizer.zero_grad()
            losses.append(loss.detach())
        return torch.stack(losses).mean()

    def summed_loss(self, batch: dict[str, Tensor]) -> Tensor:
        """Over the answers' tokens, each predicted from those before it."""
        labels = batch["labels"]
        inputs = {name: part for name, part in batch.items() if name != "labels"}
        logits = self.model(**inputs, use_cache=False).logits[:, :-1].float()
        return torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100, reduction="sum"
        )

    def save_model(self, folder: Path) -> None:
        """What is used afterwards: the adapter alone, or all weights (`from_pretrained`)."""
        weights = self.accelerator.get_state_dict(self.model)  # every process helps to gather
        if self.accelerator.is_main_process:
            model: Any = self.accelerator.unwrap_model(self.model)
            model.save_pretrained(str(folder), state_dict=weights)


def describe_base(options: argparse.Namespace) -> str:
    """The dtypes of the weights in words."""
    if not options.lora_rank:
        return "weights in fp32"
    base = "nf4, the rest in " * options.qlora + options.precision
    return f"adapters in fp32 on a frozen base in {base}"


def main(options: argparse.Namespace) -> None:
    """Train, then write the adapter."""
    trainer = Trainer(options)
    accelerator, say = trainer.accelerator, trainer.accelerator.print
    checkpoints = Checkpoints(options, accelerator, trainer.store)
    first = checkpoints.first
    say(f"{len(trainer.pairs):,} pairs of signature and docstring")
    say(
        f"{trainer.trained:,} parameters are trained, {options.precision}, {describe_base(options)}"
    )
    say(f"{accelerator.num_processes} processes, from step {first}")
    for step in range(first, options.steps):
        loss = trainer.step(step)
        if (step + 1) % options.log_every == 0 or step + 1 == options.steps:
            mean = torch.as_tensor(accelerator.reduce(loss, "mean")).item()
            say(f"step {step + 1:6d} | loss {mean:.4f} | lr {learning_rate(step, options):.2e}")
        if checkpoints.due(step + 1):
            checkpoints.save(step + 1, torch.as_tensor(accelerator.reduce(loss, "mean")).item())
    folder = options.checkpoint_dir / ("adapter" if options.lora_rank else "model")
    trainer.save_model(folder)
    say(f"written: {folder}")
    checkpoints.close()
    del trainer, checkpoints
    end(accelerator)


if __name__ == "__main__":
    main(OPTIONS)  # pyright: ignore[reportPossiblyUnboundVariable] - bound above, same "if"

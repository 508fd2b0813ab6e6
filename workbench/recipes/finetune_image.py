"""Teach a text-to-image model your pictures: LoRA on diffusers' models, with PEFT's adapters.

    workbench launch finetune_image --nproc 8 -- --model ./stable-diffusion --data ./pictures
    torchrun --nproc-per-node 8 finetune_image.py --model ./stable-diffusion --data ./pictures

The model is a folder or hub name of diffusers with a UNet and one text encoder (Stable Diffusion 1
and 2); the data a folder of pictures, each with a caption in metadata.jsonl or in a .txt of its
name: `workbench data FOLDER` shows it. Noise and time of an example follow from the seed and its
place, so the curve is the same on any ranks. DDP and FSDP are chosen outside, with `accelerate
launch`. It needs training-workbench[image]. Everything above `import torch` needs only the standard
library, see gpt.py.
"""

# ruff: noqa: E402 - the command line is read before torch is loaded, see above
# pyright: reportMissingImports=false, reportPrivateImportUsage=false, reportArgumentType=false, reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import argparse
import sys
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
    pipeline_problem,
    with_checkpoint,
)

_MOST_PROMPTS = 8
_MAY_BE_ZERO = {"warmup", "seed", "checkpoint_every", "sample_every"}


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line and fill in what follows from it; ValueError if it cannot be."""
    parser = Parser(description="Fine-tune a text-to-image model with LoRA.", allow_abbrev=False)
    add = parser.group("model")
    add("--model", dest="base", type=local, required=True, help="a diffusers folder or hub name")
    add("--lora-rank", type=int, default=8, help="rank of the adapters in every attention")
    add(
        "--precision",
        choices=("fp32", "bf16", "fp16"),
        default="fp32",
        help="number format of the computation",
    )
    add = parser.group("data")
    add("--data", dest="pictures", type=local, required=True, help="folder of pictures")
    add("--resolution", type=int, default=512, help="pixels per side; shorter sides are scaled")
    add("--strict", action="store_true", help="refuse a folder with broken pictures; else skipped")
    add = parser.group("batch")
    add("--micro-batch", type=int, default=1, help="pictures per process and micro-step")
    add("--accumulate", type=int, default=1, help="micro-steps per optimizer step")
    add = parser.group("schedule")
    add("--steps", type=int, default=500, help="optimizer steps")
    add("--lr", type=float, default=1e-4, help="peak learning rate")
    add("--warmup", type=int, default=10, help="steps until the peak learning rate")
    add("--seed", type=int, default=0, help="seed of adapters, order, noise and samples")
    add("--min-snr", type=float, metavar="GAMMA", help="weigh steps by min(SNR, GAMMA); usual: 5")
    add = parser.group("evaluation and output")
    add("--log-every", type=int, default=10, help="steps between printed lines")
    add("--sample-every", type=int, default=0, help="steps between pictures of prompts; 0: none")
    add("--sample-prompts", nargs="+", metavar="TEXT", help="prompts of the samples, at most 8")
    add("--sample-steps", type=int, default=25, help="denoising steps of a sample")
    add_checkpoints(parser)
    options = parser.parse_args(arguments)
    check_positive(parser, options, _MAY_BE_ZERO)
    check_checkpoints(parser, options)
    _check(parser, options)
    # What others ask of every recipe; pictures have no layers of tokens for an estimate to know.
    for name in ("layers", "hidden", "heads", "vocab", "mlp", "tied", "parameters"):
        setattr(options, name, None)
    options.seq_len = options.minutes = None
    return options


def _check(parser: Parser, options: argparse.Namespace) -> None:
    """Refuse what cannot be meant; files are looked at when the run starts."""
    if options.resolution % 8:
        parser.error(f"--resolution {options.resolution} is not a multiple of 8")
    if bool(options.sample_every) != bool(options.sample_prompts):
        parser.error("--sample-every N and --sample-prompts TEXT belong together: give both")
    if len(options.sample_prompts or ()) > _MOST_PROMPTS:
        parser.error(f"--sample-prompts: {len(options.sample_prompts)} prompts; give at most 8")


def started() -> argparse.Namespace:
    """The command line, its model looked at; ValueError if it cannot be trained."""
    options = with_checkpoint(parse_options)
    if problem := pipeline_problem(options.base):
        raise ValueError(problem)
    return options


if __name__ == "__main__":
    OPTIONS = options_or_exit(started)

import torch
from accelerate import Accelerator
from checkpointing import Checkpoints
from diffusers import AutoencoderKL, DDPMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from diffusers.training_utils import cast_training_params, compute_snr
from dtypes import DTYPES
from ending import end
from epoch_order import EpochOrder, positions
from finetune_image_data import pixels, usable
from finetune_image_samples import ImageSamples
from library_state import prepare
from peft import LoraConfig, get_peft_model_state_dict
from skipped_data import data_step, skipped_ranges
from torch import Tensor
from transformers import CLIPTextModel, CLIPTokenizer

from workbench.errors import WorkbenchError
from workbench.training_data.pictures import Picture

ATTENTION = ("to_q", "to_k", "to_v", "to_out.0")  # what diffusers calls its linear layers


def load(kind: Any, options: argparse.Namespace, part: str, **more: Any) -> Any:
    """A part of the model, as its folder or the hub has it."""
    try:
        return kind.from_pretrained(options.base, subfolder=part, **more)
    except (OSError, ValueError, KeyError) as error:
        words = " ".join(str(error).split())[:300]
        raise SystemExit(
            f"finetune_image.py: error: --model {options.base}: its {part} cannot be read: {words}"
        ) from error


class Trainer:
    """The model's parts on their device, the pictures, and the steps between them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.accelerator = Accelerator(
            mixed_precision="no" if options.precision == "fp32" else options.precision,
            gradient_accumulation_steps=options.accumulate,
        )
        self.pictures: list[Picture] = usable(options, self.accelerator)
        self.order = EpochOrder(len(self.pictures), options.seed)
        frozen: dict[str, Any] = {"torch_dtype": DTYPES[options.precision]}
        self.tokenizer = load(CLIPTokenizer, options, "tokenizer")
        self.noise: Any = load(DDPMScheduler, options, "scheduler")
        self.text = load(CLIPTextModel, options, "text_encoder", **frozen)
        self.vae = load(AutoencoderKL, options, "vae", **frozen)
        unet = load(UNet2DConditionModel, options, "unet", **frozen)
        for part in (self.text, self.vae, unet):
            part.requires_grad_(requires_grad=False).to(self.accelerator.device)
        torch.manual_seed(options.seed)  # every process draws the same adapters
        rank = options.lora_rank
        unet.add_adapter(LoraConfig(r=rank, lora_alpha=rank, target_modules=list(ATTENTION)))
        cast_training_params(unet, dtype=torch.float32)
        trained = [weight for weight in unet.parameters() if weight.requires_grad]
        self.trained = sum(map(Tensor.numel, trained))
        optimizer = torch.optim.AdamW(trained, lr=options.lr, weight_decay=1e-2)
        self.model, self.optimizer, self.store = prepare(self.accelerator, unet, optimizer, options)

    @torch.no_grad()
    def encoded(self, places: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Latents [B, C, h, w] and embedded captions [B, tokens, width] of these places."""
        chosen = [self.pictures[self.order[place]] for place in places]
        device, dtype = self.accelerator.device, self.vae.dtype
        images = pixels(chosen, self.options.resolution).to(device, dtype)
        spread = self.vae.encode(images).latent_dist
        latents = spread.mean + spread.std * self.drawn(places, spread.mean.shape[1:], key=1)
        factor = self.vae.config.scaling_factor
        captions = [picture.caption for picture in chosen]
        length = self.tokenizer.model_max_length
        tokens = self.tokenizer(
            captions, padding="max_length", truncation=True, max_length=length, return_tensors="pt"
        )
        return latents * factor, self.text(tokens.input_ids.to(device))[0]

    def drawn(self, places: Sequence[int], shape: Sequence[int], *, key: int) -> Tensor:
        """Normal numbers by place, the same on every rank that draws them: [B, *shape]."""
        rows = [torch.randn(*shape, generator=self.generator(place, key)) for place in places]
        return torch.stack(rows).to(self.accelerator.device, self.vae.dtype)

    def generator(self, place: int, key: int) -> torch.Generator:
        """Of one example's numbers; `key` says of which."""
        return torch.Generator().manual_seed(1_000_003 * self.options.seed + 3 * place + key)

    def loss(self, places: Sequence[int]) -> Tensor:
        """How far the model is off the noise that was added, or what its scheduler asks for."""
        latents, captions = self.encoded(places)
        noise = self.drawn(places, latents.shape[1:], key=2)
        count = self.noise.config.num_train_timesteps
        draws = [torch.randint(count, (), generator=self.generator(place, 0)) for place in places]
        times = torch.stack(draws).to(latents.device)
        noisy = self.noise.add_noise(latents, noise, times)
        predicted = self.model(noisy, times, captions).sample.float()
        by_speed = self.noise.config.prediction_type == "v_prediction"
        target = self.noise.get_velocity(latents, noise, times) if by_speed else noise
        squares = (predicted - target.float()).square().flatten(1).mean(1)
        if self.options.min_snr:  # arXiv 2303.09556
            snr = compute_snr(self.noise, times)
            squares = squares * snr.clamp(max=self.options.min_snr) / (snr + by_speed)
        return squares.mean()

    def step(self, number: int) -> Tensor:
        """One optimizer step; the mean loss of this process's pictures."""
        options, accelerator = self.options, self.accelerator
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(number, options)
        rows = positions(
            data_step(number, skipped_ranges()),
            size=options.micro_batch,
            accumulate=options.accumulate,
            rank=accelerator.process_index,
            ranks=accelerator.num_processes,
        )
        losses = list[Tensor]()
        for places in rows:
            with accelerator.accumulate(self.model):
                loss = self.loss(places)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.optimizer.zero_grad()
            losses.append(loss.detach())
        return torch.stack(losses).mean()

    def save(self, folder: Path) -> None:
        """The adapter alone, as `pipeline.load_lora_weights` takes it."""
        weights = self.accelerator.get_state_dict(self.model)  # every process helps to gather
        if self.accelerator.is_main_process:
            unet = self.accelerator.unwrap_model(self.model)
            layers = get_peft_model_state_dict(unet, state_dict=weights)
            StableDiffusionPipeline.save_lora_weights(str(folder), unet_lora_layers=layers)
        self.accelerator.wait_for_everyone()


def main(options: argparse.Namespace) -> None:
    """Train, then write the adapter."""
    trainer = Trainer(options)
    accelerator, say = trainer.accelerator, trainer.accelerator.print
    samples = ImageSamples(options, trainer)
    checkpoints = Checkpoints(options, accelerator, trainer.store)
    first = checkpoints.first
    say(f"{trainer.trained:,} parameters are trained, {options.precision}")
    say(f"{accelerator.num_processes} processes, from step {first}")
    if first == 0:
        samples.take(0)
    for step in range(first, options.steps):
        result = trainer.step(step)
        if (step + 1) % options.log_every == 0 or step + 1 == options.steps:
            loss = torch.as_tensor(accelerator.reduce(result, "mean")).item()
            say(f"step {step + 1:6d} | loss {loss:.4f} | lr {learning_rate(step, options):.2e}")
        samples.take(step + 1)
        if checkpoints.due(step + 1):
            loss = torch.as_tensor(accelerator.reduce(result, "mean")).item()
            checkpoints.save(step + 1, loss)
    folder = options.checkpoint_dir / "lora"
    trainer.save(folder)
    say(f"written: {folder}")
    checkpoints.close()
    del trainer, checkpoints, samples
    end(accelerator)


if __name__ == "__main__":
    try:
        main(OPTIONS)  # pyright: ignore[reportPossiblyUnboundVariable] - bound above, same "if"
    except WorkbenchError as problem:
        sys.exit(f"finetune_image.py: error: {problem}")

"""Pictures of fixed prompts while finetune_image.py trains, drawn by all processes.

Every process takes part in each pass through the model, as sharded weights need it, with the same
numbers; one of them keeps the pictures. The generators are of the samples alone, so the training is
exactly as it would be without.
"""

# pyright: reportMissingImports=false, reportPrivateImportUsage=false, reportArgumentType=false, reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import argparse
import os
from pathlib import Path
from typing import Any

import torch
from diffusers import DDIMScheduler, StableDiffusionPipeline
from recipe_options import first_rank
from samples import outside_steps, tell

_FOLDER = "samples"  # below the run's directory, where the dashboard looks for pictures


class ImageSamples:
    """What the model draws; every process makes one and calls it at the same steps."""

    def __init__(self, options: argparse.Namespace, trainer: Any) -> None:
        self._options, self._trainer = options, trainer
        home = os.environ.get("WORKBENCH_RUN_DIR")
        self._home = Path(home) if home else options.checkpoint_dir.parent

    @torch.no_grad()
    def take(self, step: int) -> list[Path]:
        """The pictures after this many steps, if it is time for them."""
        options = self._options
        if not options.sample_every or step % options.sample_every:
            return []
        files = list[Path]()
        with outside_steps() as alive, self._trainer.accelerator.autocast():
            draw = self._pipeline()
            for number, prompt in enumerate(options.sample_prompts):
                alive()
                generator = torch.Generator().manual_seed(options.seed + number)
                image = draw(
                    prompt,
                    height=options.resolution,
                    width=options.resolution,
                    num_inference_steps=options.sample_steps,
                    generator=generator,
                ).images[0]
                file = self._home / _FOLDER / f"step-{step:08d}-{number}.png"
                files.append(file)
                if first_rank():
                    file.parent.mkdir(parents=True, exist_ok=True)
                    image.save(file)
                self._trainer.accelerator.print(f"step {step:6d} | sample {prompt!r} -> {file}")
                tell(step, prompt=prompt, answer=f"{_FOLDER}/{file.name}")
        return files

    def _pipeline(self) -> Any:
        """Made of the trainer's own parts; DDIM needs few steps and draws no numbers."""
        trainer = self._trainer
        pipeline: Any = StableDiffusionPipeline(
            vae=trainer.vae,
            text_encoder=trainer.text,
            tokenizer=trainer.tokenizer,
            unet=trainer.accelerator.unwrap_model(trainer.model),
            scheduler=DDIMScheduler.from_config(trainer.noise.config),
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
        )
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

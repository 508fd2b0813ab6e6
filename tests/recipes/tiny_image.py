"""A small Stable Diffusion and pictures to train it on, made on the spot with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 60), "blue": (30, 60, 220)}


def tokenizer_files(folder: Path) -> Path:
    """CLIP's kind of tokenizer over letters alone: no merges."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    folder.mkdir(parents=True, exist_ok=True)
    letters = list(bytes_to_unicode().values())
    words = [*letters, *(f"{one}</w>" for one in letters), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({one: at for at, one in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    about = {"tokenizer_class": "CLIPTokenizer", "model_max_length": 24}
    marks = dict.fromkeys(("eos_token", "unk_token", "pad_token"), "<|endoftext|>")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({**about, **marks, "bos_token": "<|startoftext|>"})
    )
    return folder


def model_folder(folder: Path, **scheduler: Any) -> Path:
    """A pipeline's folder: UNet and VAE of two levels, a text encoder of two layers."""
    import torch
    from diffusers import (
        AutoencoderKL,
        DDPMScheduler,
        StableDiffusionPipeline,
        UNet2DConditionModel,
    )
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    torch.manual_seed(0)
    unet = UNet2DConditionModel(
        sample_size=16,
        layers_per_block=1,
        block_out_channels=(16, 32),
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=4,
        cross_attention_dim=32,
    )
    vae = AutoencoderKL(
        block_out_channels=(16, 16),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
        norm_num_groups=8,
    )
    tokenizer = CLIPTokenizer.from_pretrained(tokenizer_files(folder / "tokenizer"))
    text = CLIPTextConfig(
        vocab_size=514,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=24,
        bos_token_id=512,
        eos_token_id=513,
        pad_token_id=513,
    )
    pipeline = StableDiffusionPipeline(
        vae=vae,
        text_encoder=CLIPTextModel(text),
        tokenizer=tokenizer,
        unet=unet,
        scheduler=DDPMScheduler(clip_sample=False, steps_offset=1, **scheduler),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.save_pretrained(folder)
    return folder


def picture_folder(folder: Path, count: int = 12, *, table: bool = False) -> Path:
    """Plain squares with a bright middle, named by their colour."""
    from PIL import Image

    folder.mkdir(parents=True)
    rows = list[str]()
    for number in range(count):
        name, colour = list(COLOURS.items())[number % len(COLOURS)]
        image = Image.new("RGB", (40 + number, 36), colour)
        image.paste((250, 250, 250), (14, 12, 26, 24))
        image.save(folder / f"{number:02d}.png")
        caption = f"a {name} field with a white square"
        rows.append(json.dumps({"file_name": f"{number:02d}.png", "text": caption}))
        if not table:
            (folder / f"{number:02d}.txt").write_text(caption)
    if table:
        (folder / "metadata.jsonl").write_text("\n".join(rows))
    return folder

"""Hugging Face's Trainer on a model made from a config, with TrainingArguments on the command line."""

from dataclasses import dataclass, field

import torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments


@dataclass
class ModelArguments:
    n_layer: int = field(default=4)
    n_embd: int = field(default=128)
    block_size: int = field(default=64)


class Tokens(torch.utils.data.Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return 2048

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        ids = torch.randint(0, 1000, (self.length,), generator=generator)
        return {"input_ids": ids, "labels": ids.clone()}


def main():
    model_args, training_args = HfArgumentParser(
        (ModelArguments, TrainingArguments)
    ).parse_args_into_dataclasses()
    config = GPT2Config(
        n_layer=model_args.n_layer,
        n_embd=model_args.n_embd,
        n_head=4,
        vocab_size=1000,
        n_positions=model_args.block_size,
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=training_args,
        train_dataset=Tokens(model_args.block_size),
    )
    trainer.train()


if __name__ == "__main__":
    main()

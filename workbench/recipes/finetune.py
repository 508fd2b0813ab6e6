"""Fine-tune a Hugging Face language model on your own examples, with TRL's and PEFT's trainers.

    workbench launch finetune --nproc 8 --strategy fsdp -- --model ./model --data chats.jsonl
    torchrun --nproc-per-node 8 finetune.py --model ./model --data chats.jsonl --method qlora

What the examples are, which rows are skipped and what the model sees of each: `workbench data FILE
--model DIR` shows it, and this trains on exactly that. DDP, FSDP and DeepSpeed are chosen outside,
with `accelerate launch`. It needs training-workbench[finetune]. Everything above `import torch`
needs only the standard library, see gpt.py.
"""

# ruff: noqa: E402 - the command line is read before torch is loaded, see above
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recipe_options import (
    Parser,
    add_samples,
    check_positive,
    check_samples,
    local,
    local_folder,
    options_or_exit,
)

TARGETS = ("q", "k", "v", "o", "gate", "up", "down")  # what a Llama calls q_proj, k_proj, …
TEMPLATES = ("chatml", "llama-3", "zephyr", "alpaca", "plain")  # of workbench.training_data
OPTIMIZERS = {
    "adamw-fused": "adamw_torch_fused",
    "adamw": "adamw_torch",
    "adamw-8bit": "adamw_bnb_8bit",
    "adafactor": "adafactor",
    "sgd": "sgd",
}
_MAY_BE_ZERO = {
    *("warmup", "weight_decay", "seed", "eval_share", "eval_every", "checkpoint_every"),
    "sample_every",
}


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line and fill in what follows from it; ValueError if it cannot be."""
    parser = Parser(description="Fine-tune a language model on your examples.", allow_abbrev=False)
    _add_what(parser)
    _add_how(parser)
    options = parser.parse_args(arguments)
    check_positive(parser, options, _MAY_BE_ZERO)
    _complete(parser, options)
    return options


def _add_what(parser: Parser) -> None:
    """Model, data and method."""
    add = parser.add_argument_group("model").add_argument
    add("--model", type=local, required=True, help="a Hugging Face model's folder or hub name")
    add("--adapter", type=local, help="folder of an adapter to train further")
    add(
        "--precision",
        choices=("fp32", "bf16", "fp16"),
        default="fp32",
        help="number format of the computation",
    )
    add = parser.add_argument_group("data").add_argument
    add("--data", type=local, required=True, help="file or folder of examples; see: workbench data")
    add("--template", choices=TEMPLATES, help="chat template; default: the tokenizer's own")
    add("--seq-len", type=int, default=1024, help="tokens per example; the rest is cut")
    add("--packing", action="store_true", help="put several examples into one sequence")
    add(
        "--learn",
        choices=("answers", "all"),
        default="answers",
        help="which tokens count in the loss",
    )
    add("--strict", action="store_true", help="refuse data with broken rows; else they are skipped")
    add = parser.add_argument_group("method").add_argument
    add(
        "--objective",
        choices=("sft", "dpo"),
        default="sft",
        help="sft: imitate the answers; dpo: prefer the chosen one of two",
    )
    add(
        "--method",
        choices=("full", "lora", "dora", "qlora"),
        default="lora",
        help="train all weights, or adapters beside the frozen weights",
    )
    add("--lora-rank", type=int, default=16, help="rank of the adapters")
    add("--lora-alpha", type=int, help="scale of the adapters; default: twice the rank")
    add("--lora-targets", default=",".join(TARGETS), help="linear layers with adapters")
    add("--dpo-beta", type=float, default=0.1, help="how closely DPO keeps to the start model")


def _add_how(parser: Parser) -> None:
    """Batch, optimizer, schedule, evaluation and checkpoints."""
    add = parser.add_argument_group("batch").add_argument
    add("--micro-batch", type=int, default=4, help="examples per process and micro-step")
    add("--accumulate", type=int, default=1, help="micro-steps per optimizer step")
    add("--seed", type=int, default=0, help="seed of adapters, split and order")
    add = parser.add_argument_group("optimizer").add_argument
    add("--optimizer", choices=tuple(OPTIMIZERS), default="adamw-fused", help="optimizer")
    add("--lr", type=float, help="peak learning rate; default by method: 2e-4, full 2e-5, DPO 5e-6")
    add("--weight-decay", type=float, default=0.0, help="weight decay of the optimizer")
    add("--clip", type=float, default=1.0, help="largest norm of the gradient")
    add = parser.add_argument_group("schedule").add_argument
    add("--epochs", type=float, default=1.0, help="passes over the data")
    add("--steps", type=int, help="optimizer steps, instead of epochs")
    add("--warmup", type=int, default=10, help="steps until the peak learning rate")
    add(
        "--schedule",
        choices=("cosine", "linear", "constant"),
        default="cosine",
        help="shape of the learning rate after the warm-up",
    )
    add = parser.add_argument_group("evaluation").add_argument
    add("--eval-share", type=float, default=0.0, help="share of the examples held out; 0: none")
    add("--eval-every", type=int, default=0, help="steps between evaluations; 0: per epoch")
    add("--log-every", type=int, default=1, help="steps between printed lines")
    add_samples(parser, "evaluation")
    add = parser.add_argument_group("checkpoints").add_argument
    home = Path(os.environ.get("WORKBENCH_RUN_DIR", ""), "checkpoints")
    add("--checkpoint-every", type=int, default=0, help="steps between checkpoints; 0: at the end")
    add("--checkpoint-dir", type=local_folder, default=home, help=f"their folder; default: {home}")
    add("--keep-last", type=int, metavar="K", help="keep the last K checkpoints; default: all")
    add("--resume", metavar="DIR", type=local, help="start from this checkpoint, or the 'latest'")


def _complete(parser: Parser, options: argparse.Namespace) -> None:
    """What follows from what was given, and what an estimate needs besides."""
    own = {name: parser.get_default(name) for name in ("lora_rank", "lora_alpha", "lora_targets")}
    typed = [name for name in own if getattr(options, name) != own[name]]
    if options.adapter and typed:
        option = f"--{typed[0].replace('_', '-')}"
        parser.error(f"{option} --adapter: it keeps its rank, scale and layers; leave {option} out")
    options.lora_targets = tuple(options.lora_targets.split(","))
    if unknown := set(options.lora_targets) - set(TARGETS):
        parser.error(f"--lora-targets {min(unknown)!r}: choose from {','.join(TARGETS)}")
    check_samples(parser, options)
    if not 0 <= options.eval_share < 1:
        parser.error(f"--eval-share {options.eval_share}: give a share below 1, as 0.1")
    if options.packing and options.objective == "dpo":
        parser.error("--packing --objective dpo: pairs cannot be packed; leave --packing out")
    if options.method == "full" and options.adapter:
        parser.error("--adapter --method full: adapters are trained with --method lora")
    if options.method == "full":
        options.lora_rank = 0
    usual = 2e-5 if options.method == "full" else 2e-4
    options.lr = options.lr or (5e-6 if options.objective == "dpo" else usual)
    options.quantization = "nf4" if options.method == "qlora" else "none"
    options.minutes = None  # the steps follow from the data


if __name__ == "__main__":
    OPTIONS = options_or_exit(parse_options)

import torch
from dtypes import DTYPES
from ending import end
from finetune_adapter import with_adapter
from finetune_data import examples, say
from finetune_held_out import ExampleTrainer
from finetune_pairs import PairTrainer
from finetune_tokenizer import tokenizer_of
from finetune_watch import Watch
from peft import LoraConfig, get_peft_model
from quantized import keep_scales, nf4
from transformers import AutoModelForCausalLM
from transformers.trainer_utils import get_last_checkpoint
from trl import DPOConfig, SFTConfig  # pyright: ignore[reportPrivateImportUsage] - loaded lazily

from workbench.errors import WorkbenchError


def make_model(options: argparse.Namespace) -> Any:
    """The model with its adapters, or all of it to train.

    Trained weights are fp32 and autocast computes in half precision; frozen ones have its dtype.
    """
    dtype = torch.float32 if options.method == "full" else DTYPES[options.precision]
    four_bits = nf4(dtype) if options.method == "qlora" else {}
    model: Any = AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype, **four_bits)
    keep_scales(model)
    if options.method == "full":
        return model
    sharded = "ACCELERATE_USE_FSDP" in os.environ or "ACCELERATE_USE_DEEPSPEED" in os.environ
    if options.adapter:
        return with_adapter(model, options.adapter, options.model)
    names: Any = [f"{target}_proj" for target in options.lora_targets]
    adapters = LoraConfig(
        task_type="CAUSAL_LM",
        r=options.lora_rank,
        lora_alpha=options.lora_alpha or 2 * options.lora_rank,
        target_modules="all-linear" if options.lora_targets == TARGETS else names,
        use_dora=options.method == "dora",
    )
    torch.manual_seed(options.seed)  # every process draws the same adapters
    return get_peft_model(model, adapters, autocast_adapter_dtype=not sharded)


def arguments_of(options: argparse.Namespace) -> dict[str, Any]:
    """The options by TRL's names."""
    when = "steps" if options.eval_every else "epoch"
    recomputed_by_fsdp = os.environ.get("FSDP_ACTIVATION_CHECKPOINTING", "").lower() == "true"
    return {
        "output_dir": str(options.checkpoint_dir),
        "per_device_train_batch_size": options.micro_batch,
        "per_device_eval_batch_size": options.micro_batch,
        "gradient_accumulation_steps": options.accumulate,
        **({"gradient_checkpointing": False} if recomputed_by_fsdp else {}),
        "num_train_epochs": options.epochs,
        "max_steps": options.steps or -1,
        "learning_rate": options.lr,
        "lr_scheduler_type": options.schedule,
        "warmup_steps": options.warmup,
        "weight_decay": options.weight_decay,
        "max_grad_norm": options.clip,
        "optim": OPTIMIZERS[options.optimizer],
        "seed": options.seed,
        "use_cpu": not torch.accelerator.is_available(),  # else bf16 is refused on CPU ranks
        "bf16": options.precision == "bf16",
        "fp16": options.precision == "fp16",
        "max_length": options.seq_len,
        "dataloader_pin_memory": torch.cuda.is_available(),
        "logging_steps": options.log_every,
        "disable_tqdm": True,
        "report_to": "none",
        "eval_strategy": when if options.eval_share else "no",
        "eval_steps": options.eval_every or None,
        "save_strategy": "steps" if options.checkpoint_every else "no",
        "save_steps": options.checkpoint_every or 500,
        "save_total_limit": options.keep_last,
    }


def make_trainer(options: argparse.Namespace) -> Any:
    """TRL's trainer for the objective."""
    tokenizer = tokenizer_of(options)
    settings = arguments_of(options)
    trainer: Any = ExampleTrainer
    arguments: Any = None  # before the model: ZeRO-3 shards it while it loads
    if options.objective == "dpo":
        arguments, trainer = DPOConfig(**settings, beta=options.dpo_beta), PairTrainer
    else:
        arguments = SFTConfig(**settings, packing=options.packing)
    if arguments.deepspeed_plugin is not None:  # else the trained weights cannot be saved
        zero = arguments.deepspeed_plugin.deepspeed_config["zero_optimization"]
        zero["stage3_gather_16bit_weights_on_model_save"] = zero["stage"] == 3
    train, held_out = examples(options, arguments)
    model = make_model(options)
    experts = any(".experts" in name for name, _ in model.named_modules())
    arguments.ddp_find_unused_parameters = experts  # with adapters it would always be on
    learned = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    every = sum(parameter.numel() for parameter in model.parameters())
    share = f" + {len(held_out):,} held out" if held_out is not None else ""
    say(f"{len(train):,} examples{share}; {learned:,} of {every:,} parameters are trained")
    return trainer(
        model=model,
        args=arguments,
        train_dataset=train,
        eval_dataset=held_out,
        processing_class=tokenizer,
    )


def save(trainer: Any, folder: Path) -> None:
    """The adapter or the whole model, and its tokenizer; the Trainer leaves a sharded one out."""
    accelerator = trainer.accelerator
    weights = accelerator.get_state_dict(trainer.model_wrapped)  # every process helps to gather
    if accelerator.is_main_process:
        accelerator.unwrap_model(trainer.model_wrapped).save_pretrained(folder, state_dict=weights)
        trainer.processing_class.save_pretrained(folder)
    accelerator.wait_for_everyone()


def newest(folder: Path) -> str | None:
    """Its last checkpoint; None where there is none, and the training begins at the beginning."""
    return get_last_checkpoint(str(folder)) if folder.is_dir() else None


def main(options: argparse.Namespace) -> None:
    """Train, then write the adapter or the model with its tokenizer."""
    trainer, resume = make_trainer(options), options.resume
    trainer.add_callback(Watch(options, trainer))
    if resume == "latest":
        resume = newest(options.checkpoint_dir)
    trainer.train(resume_from_checkpoint=resume)
    folder = options.checkpoint_dir / ("model" if options.method == "full" else "adapter")
    save(trainer, folder)
    say(f"written: {folder}")
    accelerator = trainer.accelerator
    del trainer
    end(accelerator)


if __name__ == "__main__":
    try:
        main(OPTIONS)  # pyright: ignore[reportPossiblyUnboundVariable] - bound above, same "if"
    except WorkbenchError as problem:
        sys.exit(f"finetune.py: error: {problem}")

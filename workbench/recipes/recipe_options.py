"""What the recipes' command lines have in common. Standard library only: torch comes later.

The part of a recipe above its `import torch` is executed alone to learn what it would train
(see __init__.py), so it may import this file and nothing heavier.
"""

import argparse
import difflib
import json
import math
import os
import re
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NoReturn

VOCABULARY = 256  # bytes, see corpus.py
_MOST_SAMPLE_TOKENS = 256
_PIPELINE = "StableDiffusionPipeline"
OPTIMIZERS = ("adamw-fused", "adamw", "adamw-8bit", "adafactor", "muon", "sgd", "sgd-momentum")


class _Defaults(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the default of each option that has one and does not tell it in its own words."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        hides_default = action.default is None or isinstance(action.default, bool)
        if hides_default or "default" in (action.help or ""):
            return action.help
        return super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line, without the wall of usage before it."""

    def __init__(self, description: str, *, allow_abbrev: bool) -> None:
        name = Path(sys.argv[0]).name  # said here: it depends on how Python was started
        super().__init__(
            prog=name,
            description=description,
            allow_abbrev=allow_abbrev,
            formatter_class=_Defaults,
        )

    def group(self, title: str) -> Callable[..., argparse.Action]:
        """What adds an argument under this heading of the help."""
        groups = (
            action_group for action_group in self._action_groups if action_group.title == title
        )
        return (next(groups, None) or self.add_argument_group(title)).add_argument

    def error(self, message: str) -> NoReturn:  # noqa: D102 - overrides
        message = re.sub(
            r"invalid (int|float) value: (.*)$",
            lambda match: (
                f"{match[2]} is not a number"
                if match[1] == "float"
                else f"{match[2]} is not a whole number; write it in full, such as 1000"
            ),
            message,
        )
        _, _, unknown = message.partition("unrecognized arguments: ")
        if unknown:
            near = difflib.get_close_matches(unknown.split()[0], self._option_string_actions, n=2)
            hint = f"Did you mean {' or '.join(near)}? " if near else ""
            message = f"{message}. {hint}--help lists all."
        raise ValueError(message)


def add_gpt(parser: Parser) -> None:
    """The flags that give a GPT its shape."""
    add = parser.group("model")
    add("--size", type=int, default=2, help="N layers, 64N wide, N heads; 12 is GPT-2 small")
    add("--layers", type=int, help="number of blocks, instead of --size's")
    add("--hidden", type=int, help="width of the residual stream, instead of --size's")
    add("--heads", type=int, help="attention heads, instead of one per 64 channels")


def add_steps(parser: Parser) -> None:
    """How long the recipes of one idea train, how fast, and from which numbers."""
    add = parser.group("schedule")
    add("--steps", type=int, default=200, help="optimizer steps")
    add("--lr", type=float, help="peak learning rate; default: from the width")
    add("--warmup", type=int, default=30, help="steps until the peak learning rate")
    add("--seed", type=int, default=0, help="seed of the weights and the data order")


def check_positive(
    parser: Parser, options: argparse.Namespace, may_be_zero: Collection[str]
) -> None:
    """Refuse numbers below zero, and zero itself where it means nothing."""
    for name, value in vars(options).items():
        lowest = 0 if name in may_be_zero else 1e-9
        if type(value) in {int, float} and not value >= lowest:  # nan is refused too
            parser.error(f"--{name.replace('_', '-')} {value}: give a number above 0")


def complete_gpt(parser: Parser, options: argparse.Namespace) -> None:
    """Fill in a GPT's shape, its learning rate, and what an estimate needs besides."""
    options.layers = options.layers or options.size
    options.hidden = options.hidden or 64 * options.size
    options.heads = options.heads or max(1, options.hidden // 64)
    if options.hidden % (2 * options.heads):  # rotary positions pair the channels of a head
        parser.error(f"--hidden {options.hidden} is not a multiple of 2 x --heads {options.heads}")
    options.lr = options.lr or 4e-3 * math.sqrt(128 / options.hidden)  # wider wants smaller steps
    # Per block 4 h² attention + 8 h² MLP; embedding and head V h.
    options.vocab, options.mlp, options.tied = VOCABULARY, 4 * options.hidden, False
    options.parameters = 12 * options.layers * options.hidden**2 + 2 * VOCABULARY * options.hidden


def options_or_exit(parse: Callable[[], argparse.Namespace]) -> argparse.Namespace:
    """What `parse` returns; its ValueError is one line and exit code 2."""
    try:
        return parse()
    except ValueError as error:
        print(f"{Path(sys.argv[0]).name}: error: {error}", file=sys.stderr)
        sys.exit(2)


def add_checkpoints(parser: Parser) -> None:
    """When to save, what to keep, where to start from; see checkpointing.py."""
    add = parser.group("checkpoints")
    home = Path(os.environ.get("WORKBENCH_RUN_DIR", ""), "checkpoints")
    add("--checkpoint-every", type=int, default=0, help="steps between checkpoints; 0: never")
    add("--checkpoint-minutes", type=float, help="minutes between checkpoints")
    add(
        "--checkpoint-auto",
        type=float,
        metavar="HOURS",
        help="choose the interval for one interruption every HOURS",
    )
    add(
        "--checkpoint-dir",
        type=local_folder,
        default=home,
        help=f"folder of the checkpoints; default: {home}",
    )
    add("--checkpoint-async", action="store_true", help="write while training continues")
    add("--keep-last", type=int, metavar="K", help="keep the last K checkpoints; default: all")
    add("--keep-best", type=int, metavar="K", help="also keep the K with the lowest loss")
    add("--resume", metavar="DIR", type=local, help="start from this checkpoint, or the 'latest'")


def add_samples(parser: Parser, title: str) -> None:
    """Answers to fixed prompts while it trains; see samples.py."""
    add = parser.group(title)
    add("--sample-every", type=int, default=0, help="steps between text samples; 0: none")
    add("--sample-prompts", nargs="+", metavar="TEXT", help="prompts, or files with one per line")
    add("--sample-tokens", type=int, default=48, help="tokens of a sample, at most 256")


def check_samples(parser: Parser, options: argparse.Namespace) -> None:
    """Refuse what would give no answers, or very long ones."""
    if bool(options.sample_every) != bool(options.sample_prompts):
        parser.error("--sample-every N and --sample-prompts TEXT belong together: give both")
    if options.sample_tokens > _MOST_SAMPLE_TOKENS:
        parser.error(f"--sample-tokens {options.sample_tokens}: at most {_MOST_SAMPLE_TOKENS}")


def pipeline_problem(base: str) -> str:
    """Why finetune_image.py cannot train a folder's model; "" = it can, or it is a hub's name."""
    folder = Path(base).expanduser()
    try:
        kind = dict(json.loads((folder / "model_index.json").read_bytes())).get("_class_name")
    except (OSError, ValueError, TypeError):
        if folder.is_dir():
            return f"--model {base} has no readable model_index.json: give a diffusers folder"
        named = base.startswith((".", "/", "~"))
        return f"--model {base} is not there: give a diffusers folder or hub name" if named else ""
    return "" if kind == _PIPELINE else f"--model {base} is a {kind}; this trains a {_PIPELINE}"


def local(text: str) -> str:
    """A path of a mounted file system; Python would make a local folder of any other address."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text):
        raise argparse.ArgumentTypeError(
            f"{text} is an object-store address; checkpoints need a mounted folder. Give a folder, "
            "for example on a mounted network volume or bucket"
        )
    return text


def local_folder(text: str) -> Path:
    """The same as a path."""
    return Path(local(text))


def check_checkpoints(parser: Parser, options: argparse.Namespace) -> None:
    """Refuse two answers to the question how often."""
    if options.checkpoint_minutes and options.checkpoint_auto:
        parser.error("--checkpoint-minutes and --checkpoint-auto both set the interval: use one")


def find_checkpoint(options: argparse.Namespace) -> Path | None:
    """The checkpoint to start from, if any; ValueError when asked for one that is not whole.

    Sizes are looked at by every rank; all bytes are read by one of them, or by all where they have
    to choose alike.
    """
    import checkpoint_files as files  # noqa: PLC0415 - not where only the options are asked for

    parent = options.checkpoint_dir
    often = ("checkpoint_every", "checkpoint_minutes", "checkpoint_auto")
    if not options.resume:
        saves = any(getattr(options, name, None) for name in often)
        if saves and (there := files.named(parent)):
            raise ValueError(f"{there[0]} exists: add --resume latest or change --checkpoint-dir")
        return None
    if options.resume == "latest":
        newest, passed = files.newest_complete(parent)
        for sentence in passed if first_rank() else ():
            print(sentence, file=sys.stderr)
        if passed and newest is None:
            raise ValueError(f"--resume latest: {parent} does not hold a complete checkpoint")
        return newest
    chosen = Path(options.resume)
    if files.step_of(chosen) is None or not chosen.is_dir():
        raise ValueError(f"--resume {chosen}: give an existing folder …/step-00000100, or latest")
    if problem := files.why_broken(chosen, read=first_rank()):
        raise ValueError(f"--resume {chosen}: {problem}; --resume latest finds a complete one")
    return chosen


def first_rank() -> bool:
    """Whether this process speaks for all; known before any library is loaded."""
    return os.environ.get("RANK", "0") == "0"


def with_checkpoint(parse: Callable[[], argparse.Namespace]) -> argparse.Namespace:
    """The command line, and as `checkpoint` where to start from (None: the beginning)."""
    options = parse()
    options.checkpoint = find_checkpoint(options)
    if options.checkpoint:
        compare_with(options.checkpoint, options)
    return options


# What makes a model another one, and what makes its curve continue differently.
_MODEL = (
    *("layers", "hidden", "heads", "arch", "image", "patch", "model", "base"),
    *("lora_rank", "lora_targets", "qlora", "fields", "rows", "dense", "dim", "width"),
)
_CURVE = (
    *("seed", "lr", "warmup", "steps", "seq_len", "precision", "optimizer", "images"),
    *("pictures", "resolution", "min_snr"),
)
RECORD = "options.json"  # beside the weights in every checkpoint of a recipe


def record(options: argparse.Namespace, strategy: str) -> dict[str, Any]:
    """What a checkpoint keeps of the run that wrote it."""
    values = {
        name: value for name in _MODEL + _CURVE if (value := _plain(options, name)) is not None
    }
    if "layers" not in values:  # a GPT's --size says no more than its layers and width
        values["size"] = _plain(options, "size")
    split = math.prod(getattr(options, name, 1) for name in ("tp", "cp", "pp"))
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    batch = getattr(options, "micro_batch", 1) * getattr(options, "accumulate", 1)
    values["global_batch"] = batch * (ranks // split or 1)
    return {"options": values, "world_size": ranks, "strategy": strategy}


def _plain(options: argparse.Namespace, name: str) -> Any:
    """A value as JSON gives it back."""
    return json.loads(json.dumps(getattr(options, name, None), default=str))


def compare_with(checkpoint: Path, options: argparse.Namespace) -> None:
    """ValueError if the checkpoint is of another model; a warning if its curve was another one."""
    if not (checkpoint / RECORD).exists():
        return  # of a script that keeps none
    try:
        saved: dict[str, Any] = json.loads((checkpoint / RECORD).read_text(encoding="utf-8"))
        before = dict[str, Any](saved["options"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{checkpoint} is not a checkpoint of this recipe ({error})") from error
    now = record(options, "")["options"]
    differ = [name for name in {**now, **before} if now.get(name) != before.get(name)]

    def both(names: list[str]) -> str:
        return ", ".join(f"{name} {before.get(name)} -> {now.get(name)}" for name in names)

    if model := [name for name in differ if name in {*_MODEL, "size"}]:
        raise ValueError(f"{checkpoint} belongs to another model: {both(model)}")
    if differ and first_rank():
        script = Path(sys.argv[0]).name
        print(
            f"{script}: warning: the curve will not continue exactly: {both(differ)}",
            file=sys.stderr,
        )


def learning_rate(step: int, options: argparse.Namespace) -> float:
    """A function of the step, never of the clock: equal flags give equal curves."""
    rate = options.lr * min(1.0, (step + 1) / max(1, options.warmup))
    if options.steps:  # the end is known: a cosine down to a tenth
        return rate * (0.55 + 0.45 * math.cos(math.pi * step / options.steps))
    # It is not: a plateau, then 1/sqrt(step), which is good wherever the time runs out.
    return rate * min(1.0, math.sqrt(10 * max(30, options.warmup) / (step + 1)))

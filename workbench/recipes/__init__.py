"""Training scripts that run out of the box, and what can be known of a run without starting it.

A recipe is one standalone script. Everything above its `import torch` uses the standard library
alone and defines `parse_options(argv)`, which raises ValueError or returns the options completed
by the model's shape. `shape()` executes just that head, so the rules stand in one place, in the
script, and asking them takes milliseconds.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.describe.other_names import meant
from workbench.errors import UnknownNameError, UsageError

DEFAULT = "gpt"
_HERE = Path(__file__).parent
_SHARED = "recipe_options"  # the file beside the recipes that their heads import


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One training script of ours."""

    name: str
    """What people type, for example `gpt`."""
    path: Path
    """The script; it runs alone: `python`, `torchrun` and `accelerate launch` all start it."""
    summary: str
    """One sentence for menus."""
    cpu_arguments: tuple[str, ...]
    """Arguments for a first look on CPU: two minutes on two slow cores show a falling loss."""
    gpu_arguments: tuple[str, ...]
    """Arguments for a first look on GPU: GPT-2 small's shape in bf16, sized for 24 GB cards."""
    block: str
    """Class name of its repeated block: what FSDP gathers one by one."""
    splits: frozenset[str] = frozenset()
    """What it does itself when told by flags (see launch/layout_flags.py): tp, cp, pp, ep, ddp (the
    options of DDP). For anything else it depends on what Accelerate does to any script."""
    alone: tuple[str, ...] = ()
    """The only degrees it knows, its own first: Accelerate's ways to spread do not reach it. Empty:
    they do."""
    needs: tuple[str, ...] = ()
    """Packages beside torch and accelerate."""
    trainer: str | None = None
    """Whose trainer it runs, by whose defaults it is predicted; its model is the user's."""


_RECIPES: Mapping[str, Recipe] = {
    "gpt": Recipe(
        name="gpt",
        path=_HERE / "gpt.py",
        summary="A byte-level GPT on the sources of Python's standard library; no download.",
        cpu_arguments=("--size", "2", "--minutes", "2"),
        gpu_arguments=(
            *("--size", "12", "--seq-len", "1024", "--micro-batch", "16"),
            *("--precision", "bf16", "--minutes", "2"),
        ),
        block="Block",
        splits=frozenset({"tp", "cp", "pp", "ddp"}),
    ),
    "lora": Recipe(
        name="lora",
        path=_HERE / "lora.py",
        summary="LoRA, QLoRA or full fine-tuning of a Hugging Face model on docstrings.",
        cpu_arguments=("--steps", "100"),
        gpu_arguments=(
            *("--size", "12", "--seq-len", "512", "--micro-batch", "16"),
            *("--precision", "bf16", "--steps", "100"),
        ),
        block="LlamaDecoderLayer",
        needs=("transformers", "peft"),
    ),
    "finetune": Recipe(
        name="finetune",
        path=_HERE / "finetune.py",
        summary="SFT or DPO of a Hugging Face model on your own examples: full, LoRA, DoRA, QLoRA.",
        cpu_arguments=(),
        gpu_arguments=("--precision", "bf16"),
        block="LlamaDecoderLayer",
        needs=("trl", "datasets", "peft"),
        trainer="trl",
    ),
    "finetune_image": Recipe(
        name="finetune_image",
        path=_HERE / "finetune_image.py",
        summary="LoRA of a text-to-image model (Stable Diffusion) on your own pictures.",
        cpu_arguments=(),
        gpu_arguments=("--precision", "bf16"),
        block="BasicTransformerBlock",
        needs=("diffusers", "peft", "transformers"),
    ),
    "vision": Recipe(
        name="vision",
        path=_HERE / "vision.py",
        summary="A ViT or ResNet on generated images of shapes.",
        cpu_arguments=("--steps", "100"),
        gpu_arguments=(
            *("--size", "6", "--image", "64", "--micro-batch", "256"),
            *("--precision", "bf16", "--steps", "100"),
        ),
        block="Block",
    ),
    "recsys": Recipe(
        name="recsys",
        path=_HERE / "recsys.py",
        summary="A click model (tables of embeddings and MLPs) on made clicks of a known floor.",
        cpu_arguments=("--steps", "200"),
        gpu_arguments=(
            *("--fields", "26", "--rows", "100000", "--dim", "64", "--width", "512"),
            *("--micro-batch", "4096", "--precision", "bf16", "--steps", "500"),
        ),
        block="Table",
    ),
    "tensor_parallel": Recipe(
        name="tensor_parallel",
        path=_HERE / "tensor_parallel.py",
        summary="Tensor parallelism from scratch, for reading: matrices split over the ranks.",
        cpu_arguments=("--steps", "100"),
        gpu_arguments=("--size", "12", "--seq-len", "1024", "--steps", "100"),
        block="Block",
        splits=frozenset({"tp"}),
        alone=("tp",),
    ),
    "context_parallel": Recipe(
        name="context_parallel",
        path=_HERE / "context_parallel.py",
        summary="Context parallelism from scratch, for reading: ring attention and Ulysses.",
        cpu_arguments=("--steps", "100"),
        gpu_arguments=("--size", "12", "--seq-len", "4096", "--steps", "100"),
        block="Block",
        splits=frozenset({"cp"}),
        alone=("cp",),
    ),
    "expert_parallel": Recipe(
        name="expert_parallel",
        path=_HERE / "expert_parallel.py",
        summary="Expert parallelism from scratch, for reading: experts spread over the ranks.",
        cpu_arguments=("--steps", "100"),
        gpu_arguments=(
            *("--size", "12", "--experts", "8", "--seq-len", "1024"),
            *("--precision", "bf16", "--steps", "100"),
        ),
        block="ExpertBlock",
        splits=frozenset({"ep"}),
        alone=("ep", "dp_replicate"),
    ),
    "pipeline": Recipe(
        name="pipeline",
        path=_HERE / "pipeline.py",
        alone=("pp",),
        summary=(
            "A pipeline from scratch, for reading: GPipe, 1F1B, interleaved, zero-bubble, naive."
        ),
        cpu_arguments=("--steps", "100"),
        gpu_arguments=("--size", "12", "--layers", "12", "--seq-len", "1024", "--steps", "100"),
        block="Block",
        splits=frozenset({"pp"}),
    ),
    "deepspeed_pipeline": Recipe(
        name="deepspeed_pipeline",
        path=_HERE / "deepspeed_pipeline.py",
        alone=("pp", "dp_replicate"),
        needs=("deepspeed",),
        summary="The same GPT in DeepSpeed's pipeline engine (1F1B).",
        cpu_arguments=("--steps", "100"),
        gpu_arguments=(
            *("--size", "12", "--layers", "12", "--seq-len", "1024"),
            *("--precision", "bf16", "--steps", "100"),
        ),
        block="Block",
        splits=frozenset({"pp"}),
    ),
}

SCRIPTS: Mapping[str, Path] = {"keras_mirrored": _HERE / "keras_mirrored.py"}
"""Scripts of ours that are launched by name, and otherwise as anyone's: nothing is predicted."""

# What shape() returns, in this order: the model, then the run. Where a recipe says nothing, the
# default holds; None for all of a model's sizes means that nothing is known of it.
_SHAPE: Mapping[str, Any] = {
    **dict.fromkeys(("layers", "hidden", "heads", "vocab", "mlp", "tied", "parameters")),
    "kv_heads": None,
    "gated_mlp": False,
    "optimizer": "adamw-fused",
    "lora_rank": 0,
    "lora_targets": (),
    "quantization": "none",
    "head_dim": None,
    "model": None,
    "checkpoint_dir": None,
    "experts": 0,
    "experts_per_token": 0,
    **dict.fromkeys(("seq_len", "micro_batch", "accumulate", "precision", "steps", "minutes")),
    "checkpoint_every": 0,
    **dict.fromkeys(("keep_last", "keep_best")),
    **dict.fromkeys(("data", "adapter", "epochs", "pictures", "base")),
    "eval_share": 0.0,
    "packing": False,
    "objective": "sft",
}


_FILES = ("model", "data", "adapter", "pictures", "base")
"""Keys whose value may be a path."""


def recipes() -> dict[str, Recipe]:
    """All recipes by name.

    >>> list(recipes())[:3]
    ['gpt', 'lora', 'finetune']
    """
    return dict(_RECIPES)


def find(name: str) -> Recipe:
    """The recipe of that name.

    Raises:
        UnknownNameError: (a ValueError) there is none; the message has the nearest names.
    """
    if name not in _RECIPES:
        raise UnknownNameError.near("recipe", name, _RECIPES)
    return _RECIPES[name]


def shape(
    arguments: Sequence[str] = (), *, recipe: str = DEFAULT, folder: Path | None = None
) -> dict[str, Any]:
    """What a recipe would train with these arguments, without loading torch.

    `folder` is where it would start; None = here. Its files are then found from there.

    The keys: layers, hidden, heads, vocab, mlp (the MLP's inner width), tied (embedding and head
    share one matrix), parameters (exact), seq_len, micro_batch (sequences per process), accumulate
    (micro-batches per optimizer step), precision, optimizer, steps and minutes (None: no such
    limit), checkpoint_every (steps; 0: never), keep_last and keep_best (checkpoints; both None:
    all); kv_heads, gated_mlp, lora_rank, lora_targets and quantization of a Hugging Face model;
    experts and experts_per_token, 0 without. A recipe without a model of tokens has None as layers.

    >>> gpt2 = shape(["--size", "12", "--seq-len", "1024"])
    >>> gpt2["layers"], gpt2["hidden"], gpt2["parameters"], gpt2["minutes"]
    (12, 768, 85327872, 2.0)

    Raises:
        UsageError: (a ValueError) the script would refuse these arguments; the message is its own.
        UnknownNameError: no recipe of that name.
    """
    script = find(recipe)
    if {"-h", "--help"} & set(arguments):
        raise UsageError(
            f"--help is not a run. Show the options of {recipe}: workbench launch {recipe} -- "
            "--help"
        )
    try:
        options = _parser_of(script.path)(list(arguments))
    except ValueError as error:
        raise UsageError(f"{script.path.name}: {error}{_other_names(recipe, arguments)}") from error
    values = {key: getattr(options, key, default) for key, default in _SHAPE.items()}
    if folder is None or folder == Path.cwd():
        return values
    there = {key: Path(folder, values[key]) for key in _FILES if values[key] is not None}
    return values | {key: str(path) for key, path in there.items() if path.exists()}


def _other_names(recipe: str, arguments: Sequence[str]) -> str:
    """What the recipe calls the options of other tools that are among the arguments."""
    flags, words = option_flags(recipe), [word.partition("=")[0] for word in arguments]
    unknown = [word for word in words if word.startswith("--") and word not in flags]
    found = {word: named for word in unknown if (named := meant(word, flags))}
    return "".join(f" {word} is {named} here." for word, named in found.items())


def help_text(recipe: str) -> str:
    """The options of a recipe, as it shows them itself, without loading torch.

    >>> print(help_text("gpt").splitlines()[0][:38])
    usage: workbench launch gpt -- [-h] [-

    Raises:
        UnknownNameError: no recipe of that name.
    """
    parse, output, before = _parser_of(find(recipe).path), io.StringIO(), sys.argv
    sys.argv = [f"workbench launch {recipe} --"]
    try:
        with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
            parse(["--help"])
    finally:
        sys.argv = before
    return output.getvalue()


def option_flags(recipe: str) -> list[str]:
    """The names of its options, such as ``--lr``.

    Raises:
        UnknownNameError: no recipe of that name.
    """
    actions = parser_of(recipe)._actions  # noqa: SLF001 - argparse has no other list of them
    return [flag for action in actions for flag in action.option_strings if flag[:2] == "--"]


def parser_of(recipe: str) -> argparse.ArgumentParser:
    """The parser of a recipe, with all its options, as it stands before it parses anything.

    Raises:
        UnknownNameError: no recipe of that name.
    """
    names = _head_of(find(recipe).path)
    made: list[argparse.ArgumentParser] = []

    class RecordingParser(names["Parser"]):
        def parse_args(self, *_args: Any, **_kwargs: Any) -> Any:
            made.append(self)
            raise ValueError("only the parser is asked for")

    names["Parser"] = RecordingParser
    with contextlib.suppress(ValueError):
        names["parse_options"]([])
    return made[0]


@functools.cache
def _parser_of(path: Path) -> Callable[[list[str]], Any]:
    """`parse_options` of the script at `path`."""
    return _head_of(path)["parse_options"]


def _head_of(path: Path) -> dict[str, Any]:
    """The names of the part of a recipe above its `import torch`."""
    head = path.read_text(encoding="utf-8").partition("\nimport torch\n")[0]
    names: dict[str, Any] = {"__name__": path.stem}
    code = compile(head, str(path), "exec", dont_inherit=True)
    there = _SHARED in sys.modules
    sys.path.insert(0, str(path.parent))  # as when the script is started
    try:
        exec(code, names)  # noqa: S102 - a file of this package, not input from anyone
    finally:
        sys.path.remove(str(path.parent))
        if not there:
            sys.modules.pop(_SHARED, None)  # the name may be someone else's in this process
    return names

"""Hugging Face models: config, class and tokenizer; no code of a model's own runs."""

# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import importlib
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from workbench.errors import UsageError
from workbench.recover.foreign import read_object
from workbench.trained_model.worker.names import matched
from workbench.trained_model.worker.recipe_files import recipe_module
from workbench.trained_model.worker.tensors import Tensors, open_tensors

_TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "spiece.model", "tokenizer.model", "spm.model"),
    *("sentencepiece.bpe.model", "tekken.json", "chat_template.jinja", "chat_template.json"),
)
_TEMPLATES = "additional_chat_templates"  # a folder beside them
_PROCESSOR_FILES = (
    *("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"),
)
_GENERATION = "generation_config.json"
# What people's folders and hubs raise: a missing file, a gated or unknown name, another form.
UNREADABLE = (OSError, ValueError, KeyError, ImportError, RuntimeError)


def recipe_options(arguments: list[str]) -> Any:
    """The recipe lora's options as its run was told them."""
    try:
        return recipe_module("lora").parse_options(arguments)
    except ValueError as error:
        raise UsageError(f"The run's arguments are not those of this version: {error}") from error


def recipe_config(options: Any) -> Any:
    """The config of the recipe lora's model."""
    if options.model:
        return config_of(options.model)
    pairs = recipe_module("pairs")
    config = transformers.LlamaConfig(
        **options.config, eos_token_id=pairs.END, pad_token_id=pairs.PADDING
    )
    config.architectures = ["LlamaForCausalLM"]
    return config


def config_of(place: str | Path) -> Any:
    """The config in a folder, or of a hub's name."""
    try:
        return transformers.AutoConfig.from_pretrained(place, trust_remote_code=False)
    except UNREADABLE as error:
        raise UsageError(
            f"The model {Path(place).name or place!r} cannot be read: {first_sentence(error)} Give "
            "its folder, or the name on the Hugging Face hub, with --base."
        ) from error


def class_of(config: Any) -> Any:
    """The class that the config names; for a base without a name, the one for text."""
    for name in config.architectures or ():
        if (kind := getattr(transformers, name, None)) is not None:
            return kind
    try:
        return type(on_meta(transformers.AutoModelForCausalLM, config))
    except UNREADABLE as error:
        raise UsageError(
            f"transformers {transformers.__version__} does not have the class of this model "
            f"({', '.join(config.architectures or ()) or config.model_type}); its own code is not "
            "run. Only its weights can be exported."
        ) from error


def on_meta(kind: Any, config: Any) -> Any:
    """The model of a class or an Auto class, without memory for its weights."""
    with torch.device("meta"):
        return kind.from_config(config) if hasattr(kind, "from_config") else kind(config)


def expected(config: Any) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """Shapes of the model's weights by name, and which of them are another one (tied)."""
    model = on_meta(class_of(config), config)
    tied = dict[str, str](getattr(model, "all_tied_weights_keys", None) or {})
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}, tied


def full_names(config: Any, tensors: Tensors, checkpoint: Path) -> dict[str, str]:
    """`matched`; {} = transformers saved them by names that are not the model's in memory.

    It saves experts one by one, and older models by their first names; it reads them so, too.
    """
    shapes, tied = expected(config)
    try:
        return matched(tensors, shapes, tied)
    except UsageError:
        by_transformers = "transformers_version" in (read_object(checkpoint / "config.json") or {})
        has_others = any(name not in shapes for name in tensors.shapes)
        if by_transformers and has_others and any(checkpoint.glob("model*.safetensors")):
            return {}
        raise


def as_saved(model: Any, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights by the names and in the shapes of the model's files: experts one by one."""
    loading: Any = importlib.import_module("transformers.core_model_loading")
    return loading.revert_weight_conversion(model, dict(state))


def load_model(request: Mapping[str, Any]) -> Any:
    """The model with the checkpoint's weights, as they were saved, on the CPU."""
    checkpoint, config = Path(request["checkpoint"]), full_config(request)
    tensors = open_tensors(checkpoint)
    names = full_names(config, tensors, checkpoint)
    if names:
        model = _filled(class_of(config)(config), tensors, names)
    else:
        model = class_of(config).from_pretrained(checkpoint, config=config, dtype="auto")
    model.generation_config = generation_of(request) or getattr(model, "generation_config", None)
    return model.eval()


def _filled(model: Any, tensors: Tensors, names: Mapping[str, str]) -> Any:
    """The model with these weights, in the widest of their types."""
    dtypes = {
        tensors.dtypes[name] for name in names.values() if tensors.dtypes[name].is_floating_point
    }
    model = model.to(max(dtypes, key=lambda kind: kind.itemsize))
    parameters: dict[str, Tensor] = model.state_dict()
    with torch.no_grad():
        for name, old in names.items():
            parameters[name].copy_(tensors.read([old])[old])
    return model


def full_config(request: Mapping[str, Any]) -> Any:
    """The config of a model whose weights were all trained."""
    if request["family"] == "lora":
        options = recipe_options(request["arguments"])
        options.model = request["base"] or options.model
        return recipe_config(options)
    return config_of(request["config"] or request["base"])


def tokenizer_of(request: Mapping[str, Any]) -> Any:
    """The tokenizer of the run; None where none is known."""
    if request["family"] == "lora" and not (
        request["base"] or recipe_options(request["arguments"]).model
    ):
        return byte_tokenizer()
    for place in _tokenizer_places(request):
        try:
            return transformers.AutoTokenizer.from_pretrained(place, trust_remote_code=False)
        except UNREADABLE:
            continue
    return None


def generation_of(request: Mapping[str, Any]) -> Any:
    """How the model draws its answers and where they end; None where nothing says it."""
    near = [str(folder) for folder in _folders(request) if (folder / _GENERATION).is_file()]
    for place in [*near, *([request["base"]] if request["base"] else [])]:
        try:
            return transformers.GenerationConfig.from_pretrained(place)
        except UNREADABLE:
            continue
    return None


def save_generation(request: Mapping[str, Any], folder: Path) -> None:
    """Beside the model; a token that ends the tokenizer's texts ends an answer, too."""
    generation = generation_of(request)
    if generation is None:
        return
    ends = generation.eos_token_id
    ends = ends if isinstance(ends, list) else [] if ends is None else [ends]
    own = getattr(tokenizer_of(request), "eos_token_id", None)
    if own is not None and own not in ends:
        generation.eos_token_id = [own, *ends] if ends else own
    generation.to_json_file(folder / _GENERATION)


def _folders(request: Mapping[str, Any]) -> list[Path]:
    """Where what belongs to the checkpoint can lie."""
    checkpoint = Path(request["checkpoint"])
    return [checkpoint, checkpoint.parent, Path(request["config"] or checkpoint)]


def _tokenizer_places(request: Mapping[str, Any]) -> list[str]:
    near = [
        str(folder)
        for folder in _folders(request)
        if any((folder / name).is_file() for name in _TOKENIZER_FILES)
    ]
    return [*dict.fromkeys(near), *([request["base"]] if request["base"] else [])]


def save_tokenizer(request: Mapping[str, Any], folder: Path) -> bool:
    """Whether there is one: the files as they are, or as transformers writes them.

    With them what prepares pictures and sound for the model.
    """
    bases = [Path(request["base"])] if request["base"] else []
    for place in [*_folders(request), *bases]:
        if _copied(place, _PROCESSOR_FILES, folder):
            break
    for place in map(Path, _tokenizer_places(request)):
        if _copied(place, _TOKENIZER_FILES, folder):
            if (place / _TEMPLATES).is_dir():
                shutil.copytree(place / _TEMPLATES, folder / _TEMPLATES)
            return True
    tokenizer = tokenizer_of(request)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    return tokenizer is not None


def _copied(place: Path, names: Sequence[str], folder: Path) -> bool:
    """Whether any of these files was there."""
    there = [place / name for name in names if (place / name).is_file()]
    for file in there:
        shutil.copyfile(file, folder / file.name)
    return bool(there)


def byte_tokenizer() -> Any:
    """The recipe lora's tokens, as transformers knows them: 256 bytes, an end mark, padding."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: PLC0415
    from transformers.convert_slow_tokenizer import bytes_to_unicode  # noqa: PLC0415

    pairs = recipe_module("pairs")
    vocabulary = {letter: byte for byte, letter in bytes_to_unicode().items()}
    vocabulary |= {"<|end|>": pairs.END, "<|padding|>": pairs.PADDING}
    tokenizer: Any = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder, "tokenizer.json"))
        tokenizer.save(file)
        return transformers.PreTrainedTokenizerFast(
            tokenizer_file=file,
            eos_token="<|end|>",  # noqa: S106 - of text
            pad_token="<|padding|>",  # noqa: S106
            clean_up_tokenization_spaces=False,
        )


def peft() -> Any:
    """PEFT has no types that a strict checker could use."""
    return importlib.import_module("peft")


def first_sentence(error: Exception) -> str:
    """An error's first line, with a full stop."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
    return line if line.endswith((".", "!", "?")) else f"{line}."

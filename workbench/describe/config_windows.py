"""Which blocks attend to a window, or keep a linear state: config keys -> fields of `Model`.

The rules are those of the configuration classes of transformers 5.24, which
tests/describe/test_config_windows.py builds: a list of kinds (`layer_types`) where the file has
one, else the pattern of its type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from workbench.describe.config_keys import Keys
from workbench.errors import UsageError

Fields = dict[str, Any]
FULL, WINDOW, CHUNK, LINEAR = "full", "window", "chunk", "linear"
_KINDS = {
    **dict.fromkeys(("full_attention", "attention", "global", "global_attention"), FULL),
    **dict.fromkeys(("sliding_attention", "local", "local_attention"), WINDOW),
    "chunked_attention": CHUNK,
    "linear_attention": LINEAR,
}
"""Words of `layer_types` -> kind."""
_LISTS = ("layer_types", "layers_block_type", "attention_layers")
_EVERY_BLOCK = ("mistral", "mixtral", "ministral3", "phi3", "phimoe", "starcoder2", "qwen3_moe")
"""Types whose blocks all have the window where it is set, whatever a list says."""
_SWITCHED = ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3", "qwen2_vl", "qwen2_5_vl")
"""Types with a window only where `use_sliding_window` says so."""
_WINDOWS = {
    **dict.fromkeys(("mistral", "ministral", "gemma2", "gemma3", "cohere2", "olmo3"), 4096),
    **dict.fromkeys(("exaone4", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"), 4096),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl"), 4096),
    "gpt_oss": 128,
    "cwm": 8192,
    "modernbert": 128,
    "gpt_neo": 256,
}
"""The class's default, for files without the key; other types have no window then."""
_LLAMA4_CHUNK = 8192
_MOST_BLOCKS = 10_000
"""No model has as many; a file that says so (a mistake, or hostile) is not gone through."""


def attention_kinds(keys: Keys, layers: int) -> Fields:
    """Window, chunk or linear state of `layers` blocks; empty where all attend to everything.

    Raises:
        UsageError: a list of kinds that is none, or of another length than `layers`.
    """
    if layers > _MOST_BLOCKS:
        return {}
    family = keys.family.removesuffix("_text")
    kinds = _kinds(keys, family, layers)
    local = kinds.count(WINDOW) + kinds.count(CHUNK)
    fields: Fields = {}
    size = _size(keys, family, chunked=CHUNK in kinds)
    if local and size:
        fields = {"window": size, "windowed_layers": local, "chunked_window": CHUNK in kinds}
    linear = kinds.count(LINEAR)
    if linear:
        state, convolution = _linear_state(keys, family)
        if state:
            fields |= {
                "linear_layers": linear,
                "linear_state": state,
                "linear_conv": convolution,
            }
        else:
            keys.notes.append(
                f"{keys.label}: the state of its linear attention is not known for {family}; it "
                "is counted as full attention, which takes longer where sequences are."
            )
    return fields


def _size(keys: Keys, family: str, *, chunked: bool) -> int:
    """Tokens of the window or chunk; 0 = none."""
    values = keys.values
    if chunked:
        return _whole(keys, "attention_chunk_size", _LLAMA4_CHUNK)
    if family in _SWITCHED and not keys.switch("use_sliding_window", default=False):
        return 0
    if values.get("use_sliding_window") is False:
        return 0
    name = {"modernbert": "local_attention", "gpt_neo": "window_size"}.get(family, "sliding_window")
    return _whole(keys, name, _WINDOWS.get(family, 0))


def _whole(keys: Keys, name: str, default: int) -> int:
    """A size; null says that there is none, absence that the class decides."""
    if name not in keys.values:
        return default
    return keys.integer(name, default=0, least=0)


def _kinds(keys: Keys, family: str, layers: int) -> list[str]:
    if family in _EVERY_BLOCK:
        return [WINDOW] * layers
    for name in _LISTS:
        if keys.has(name):
            return _listed(keys, name, layers)
    if family == "kimi_linear" or family.startswith("minimax"):
        return _numbered(keys, family, layers)
    if family == "gpt_neo":
        return _repeated(keys, layers)
    rule = _PATTERNS.get(family, _unknown)
    return [rule(keys, index) for index in range(layers)]


def _list(keys: Keys, name: str) -> Sequence[Any]:
    value = keys.values[name]
    if not isinstance(value, list | tuple):
        raise UsageError(f"{name} in {keys.label} must be a list, not {value!r}.")
    return cast("Sequence[Any]", value)


def _listed(keys: Keys, name: str, layers: int) -> list[str]:
    """The kinds that the file names, one a block."""
    words = [str(word) for word in _list(keys, name)]
    if len(words) != layers:
        raise UsageError(
            f"{name} in {keys.label} names {len(words)} blocks, but there are {layers}. Name the "
            "kind of each block, or leave the list out."
        )
    unknown = sorted(set(words) - set(_KINDS))
    if unknown:
        keys.notes.append(
            f"{keys.label}: {name} has {', '.join(unknown[:4])}, counted as full attention."
        )
    return [_KINDS.get(word, FULL) for word in words]


def _numbered(keys: Keys, family: str, layers: int) -> list[str]:
    """Kimi Linear counts its full blocks from 1; MiniMax-01 writes 0 for linear, 1 for full."""
    if family == "kimi_linear":
        listed = _linear_config(keys).get("full_attn_layers")
        if isinstance(listed, list | tuple):
            full = set(cast("Sequence[Any]", listed))
            return [FULL if index + 1 in full else LINEAR for index in range(layers)]
        return [FULL if index and index % 4 == 0 else LINEAR for index in range(layers)]
    if keys.has("attn_type_list"):
        words = _list(keys, "attn_type_list")
        return [FULL if word else LINEAR for word in words[:layers]]
    if family == "minimax":
        return [FULL if (index + 1) % 2 else LINEAR for index in range(layers)]
    return [FULL] * layers


def _repeated(keys: Keys, layers: int) -> list[str]:
    """GPT-Neo: [[["global", "local"], 12]] is the two, twelve times."""
    if not keys.has("attention_types"):
        return [FULL if index % 2 == 0 else WINDOW for index in range(layers)]
    words: list[str] = []
    for item in _list(keys, "attention_types"):
        try:
            names, times = item
            words += [str(name) for name in names] * int(times)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"attention_types in {keys.label} must be pairs like [['global', 'local'], 12], "
                f"not {item!r}."
            ) from error
    return [_KINDS.get(word, FULL) for word in words[:layers]]


def _every(step_key: str, default: int) -> Callable[[Keys, int], str]:
    """Every n-th block attends to everything, the others to a window."""

    def kind(keys: Keys, index: int) -> str:
        pattern = keys.values.get(step_key)
        if isinstance(pattern, str) and pattern:  # EXAONE 4: "LLLG"
            return FULL if pattern[index % len(pattern)] == "G" else WINDOW
        step = keys.integer(step_key, default=default)
        return FULL if (index + 1) % step == 0 else WINDOW

    return kind


def _first_of(step: int, key: str = "") -> Callable[[Keys, int], str]:
    """The first of every n blocks attends to everything."""

    def kind(keys: Keys, index: int) -> str:
        every = keys.integer(key, default=step) if key else step
        return WINDOW if index % every else FULL

    return kind


def _after(default: int) -> Callable[[Keys, int], str]:
    """Blocks from `max_window_layers` on have the window."""

    def kind(keys: Keys, index: int) -> str:
        return (
            WINDOW if index >= keys.integer("max_window_layers", default=default, least=0) else FULL
        )

    return kind


def _qwen2_moe(keys: Keys, index: int) -> str:
    below = index < keys.integer("max_window_layers", default=28, least=0)
    return WINDOW if (index + 1) % 2 and below else FULL


def _rotates(keys: Keys, index: int) -> bool:
    """Whether a block has rotary positions (`no_rope_layers` holds 1 where it has)."""
    if keys.values.get("no_rope_layers"):
        listed = _list(keys, "no_rope_layers")
        return index < len(listed) and bool(listed[index])
    return (index + 1) % keys.integer("no_rope_layer_interval", default=4) != 0


def _llama4(keys: Keys, index: int) -> str:
    return CHUNK if _rotates(keys, index) else FULL


def _smollm3(keys: Keys, index: int) -> str:
    return FULL if _rotates(keys, index) else WINDOW


def _interval(keys: Keys, index: int) -> str:
    return FULL if (index + 1) % keys.integer("full_attention_interval", default=4) == 0 else LINEAR


def _unknown(keys: Keys, index: int) -> str:
    """Another type: a pattern in the file counts, a window alone does not say whose it is."""
    if keys.has("sliding_window") and keys.has("sliding_window_pattern"):
        return _every("sliding_window_pattern", 1)(keys, index)
    window, longest = keys.values.get("sliding_window"), keys.values.get("max_position_embeddings")
    limits = isinstance(window, int) and not (isinstance(longest, int) and window >= longest)
    if index == 0 and window and limits and keys.values.get("use_sliding_window") is not False:
        keys.notes.append(
            f"{keys.label}: its sliding window of {window:,} tokens is counted as full attention "
            f"(which blocks of {keys.family} have it is not known; layer_types says it), which "
            "takes longer where sequences are."
        )
    return FULL


_PATTERNS: dict[str, Callable[[Keys, int], str]] = {
    **dict.fromkeys(("gemma2", "gpt_oss"), _every("", 2)),
    "gemma3": _every("sliding_window_pattern", 6),
    **dict.fromkeys(("cohere2", "exaone4"), _every("sliding_window_pattern", 4)),
    "olmo3": _every("", 4),
    "cwm": _first_of(4),
    "modernbert": _first_of(3, "global_attn_every_n_layers"),
    "ministral": lambda _keys, _index: WINDOW,
    **dict.fromkeys(("qwen2", "qwen3"), _after(28)),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl"), _after(80)),
    "qwen2_moe": _qwen2_moe,
    "smollm3": _smollm3,
    "llama4": _llama4,
    **dict.fromkeys(("qwen3_next", "qwen3_5", "qwen3_5_moe"), _interval),
}
"""model_type (without _text) -> the kind of its block of that number."""


def _linear_config(keys: Keys) -> dict[str, Any]:
    inner = keys.values.get("linear_attn_config")
    return cast("dict[str, Any]", inner) if isinstance(inner, dict) else {}


def _linear_state(keys: Keys, family: str) -> tuple[int, int]:
    """Elements of one linear block's state and of its convolution's, for one sequence."""
    if family in {"qwen3_next", "qwen3_5", "qwen3_5_moe"}:
        key = keys.integer("linear_key_head_dim", default=128)
        value = keys.integer("linear_value_head_dim", default=128)
        values = keys.integer("linear_num_value_heads", default=32)
        keys_of_all = keys.integer("linear_num_key_heads", default=16) * key
        channels = 2 * keys_of_all + values * value
        kernel = keys.integer("linear_conv_kernel_dim", default=4)
        return values * key * value, channels * kernel
    if family == "kimi_linear":
        inner = Keys(
            values={**keys.values, **_linear_config(keys)}, label=keys.label, family=family
        )
        heads = inner.integer("num_heads", "linear_num_heads", default=32)
        width = inner.integer("head_dim", default=128)
        kernel = inner.integer("short_conv_kernel_size", "linear_conv_kernel_dim", default=4)
        return heads * width * width, 3 * heads * width * kernel
    if family.startswith("minimax"):
        heads = keys.integer("num_attention_heads")
        width = keys.integer("head_dim", default=keys.integer("hidden_size") // heads)
        return heads * width * width, 0
    return 0, 0

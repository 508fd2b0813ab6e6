"""The model's shape: everything memory, FLOPs and communication depend on, and nothing else."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.describe.checks import require_choice, require_positive
from workbench.describe.measured import Measured
from workbench.describe.shown import changed_fields
from workbench.errors import UsageError

if TYPE_CHECKING:
    from torch import nn

KINDS = ("decoder", "encoder", "vision", "module")
NORMS = ("rmsnorm", "rmsnorm-plain", "layernorm", "layernorm-no-bias", "layernorm-plain")
POSITIONS = ("rope", "learned", "alibi", "none")
USUAL_SEQ_LEN = 2048
LARGEST = 10**15  # parameters; beyond it a shape is a typing mistake


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """What was measured on a module that is not a transformer stack (U-Net, DiT, recommender)."""

    parameters: int
    """Exact number of parameters."""
    largest_block_parameters: int
    """Parameters of the largest wrapped block: what FSDP gathers at once."""
    blocks: int = 1
    """Blocks that were found; 1 = the module as a whole."""
    saved_bytes: int | None = None
    """Bytes that autograd keeps for one sample at `precision_bytes`, parameters and buffers left
    out, the loss not included; None = not measured (no example inputs)."""
    largest_block_saved_bytes: int | None = None
    """The same for the block that keeps most, its inputs left out: what full recompute holds on
    top of the boundaries while that block runs again."""
    boundary_bytes: int | None = None
    """The blocks' inputs for one sample, each tensor once: what full recompute keeps."""
    precision_bytes: int = 4
    """Element size of the parameters at which it was traced."""
    measured: Measured | None = None
    """A real step of the script that trains it (``workbench measure``): what an estimate is then
    made from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Shape of a transformer (decoder, encoder, vision) or of a traced module.

    Sizes are per whole model, never per rank. ``Model.catalog("llama-3-8b")``,
    ``Model.from_config(...)`` and ``Model.from_module(...)`` build one.
    """

    __repr__ = changed_fields

    name: str
    """What people call it."""
    layers: int
    """Transformer blocks."""
    hidden: int
    """Width of the residual stream."""
    heads: int
    """Attention (query) heads per block."""
    mlp_hidden: int
    """Inner width of the dense MLP."""
    vocab: int
    """Rows of the embedding = width of the logits (vision: number of classes)."""
    kind: str = "decoder"
    """decoder (causal), encoder, vision (patches in, classes out), or module (see `traced`)."""
    kv_heads: int | None = None
    """Key/value heads (grouped-query attention); None = as many as `heads`."""
    head_dim: int | None = None
    """Width of one head; None = hidden / heads."""
    gated_mlp: bool = True
    """SwiGLU/GeGLU with three matrices (Llama); False = two matrices (GPT-2)."""
    norm: str = "rmsnorm"
    """rmsnorm, layernorm (weight and bias), layernorm-no-bias; -plain: without parameters."""
    norms_per_block: int = 2
    """Norms on the residual stream per block (Gemma 2: 4; Falcon-7B, Phi: 1)."""
    parallel_block: bool = False
    """Attention and MLP read the same normed input and are added together (Falcon, Phi, NeoX)."""
    qk_norm: bool = False
    """Queries and keys are normed per head (Qwen 3, Gemma 3)."""
    qk_norm_full: bool = False
    """Queries and keys are normed over all heads together (OLMo 2)."""
    fused_qkv: bool = False
    """One matrix makes q, k and v (GPT-2, BLOOM, NeoX): autocast keeps one copy of its input."""
    qkv_bias: bool = False
    """Bias on the q, k, v projections."""
    out_bias: bool = False
    """Bias on attention's output projection."""
    attention_gate: bool = False
    """Attention's result is gated by a projection of the block's input (Qwen3-Next, Qwen 3.5)."""
    mlp_bias: bool = False
    """Bias on the MLP's projections."""
    position: str = "rope"
    """rope, learned (a table of `max_positions`), alibi, none."""
    max_positions: int = 0
    """Rows of the learned position table; 0 without one."""
    unused_positions: int = 0
    """Rows of it that no token of a sequence takes (RoBERTa, OPT: the first two)."""
    tied_embeddings: bool = False
    """Head and embedding share one matrix."""
    final_norm: bool = True
    """A norm before the head."""
    embedding_norm: bool = False
    """A norm after the embedding (BLOOM, BERT)."""
    head_bias: bool = False
    """Bias on the head."""
    mlm_head: bool = False
    """BERT's transform (dense + norm) before the head."""
    token_types: int = 0
    """Rows of the token-type table (BERT: 2)."""
    pooler: bool = False
    """A dense layer over the first token (BERT)."""
    classes: int = 0
    """Classes of a head on one vector per sequence; 0 = logits of every token (`classifier`)."""
    dropout: float = 0.0
    """Dropout on residuals and attention output; above 0 masks are kept for backward."""
    image_size: int = 0
    """Vision: edge of the input in pixels."""
    patch_size: int = 0
    """Vision: edge of a patch in pixels."""
    experts: int = 0
    """Routed experts per MoE block; 0 = dense."""
    experts_per_token: int = 0
    """Experts that each token visits (top-k)."""
    expert_hidden: int = 0
    """Inner width of one routed expert."""
    shared_expert_hidden: int = 0
    """Total inner width of the shared experts; 0 without."""
    dense_layers: int = 0
    """Blocks with a dense MLP in a MoE model (DeepSeek-V3: the first 3)."""
    q_lora_rank: int = 0
    """MLA: rank of the compressed queries; 0 = queries are not compressed."""
    kv_lora_rank: int = 0
    """MLA: rank of the compressed keys and values; 0 = no MLA."""
    rope_head_dim: int = 0
    """MLA: the rotary part of each head (on top of `head_dim`)."""
    value_head_dim: int = 0
    """MLA: width of one head's values."""
    window: int = 0
    """Tokens that a windowed block attends to, its own included (encoder: on both sides
    together); 0 = every block attends to the whole sequence."""
    windowed_layers: int = 0
    """Blocks with that window; the others attend to everything (Gemma 3: five of six)."""
    chunked_window: bool = False
    """Sequences are cut into chunks of `window` tokens that attend to themselves (Llama 4)."""
    linear_layers: int = 0
    """Blocks with a state of fixed size in place of keys and values (Qwen3-Next: three of four)."""
    linear_state: int = 0
    """Elements of such a block's state for one sequence: all heads' keys times values."""
    linear_conv: int = 0
    """Elements that its short convolution keeps of a sequence; 0 without one."""
    extra_parameters: int = 0
    """Parameters outside this scheme (a vision tower, soft tokens), treated as one root weight."""
    traced: Traced | None = None
    """Measured facts of a `module`; None for transformers."""

    def __post_init__(self) -> None:
        require_choice("kind", self.kind, KINDS)
        require_choice("norm", self.norm, NORMS)
        require_choice("position", self.position, POSITIONS)
        if self.kind == "module":
            if self.traced is None:
                raise UsageError("A model of kind 'module' needs traced facts: Model.from_module.")
            return
        for field in ("layers", "hidden", "heads", "vocab"):
            require_positive(f"model.{field}", getattr(self, field))
        self._check_attention()
        self._check_kinds()
        self._check_mlp()
        if self.kind == "vision":
            require_positive("model.image_size", self.image_size)
            require_positive("model.patch_size", self.patch_size)
        if self.parameters > LARGEST:
            raise UsageError(
                f"{self.name} has {self.parameters:.3g} parameters; up to {LARGEST:.0e} can be "
                "estimated. Check layers, hidden and experts."
            )

    def _check_attention(self) -> None:
        if self.head_dim is not None:
            require_positive("model.head_dim", self.head_dim)
        elif self.hidden % self.heads:
            raise UsageError(
                f"hidden {self.hidden} is not divisible by {self.heads} heads. "
                "Give head_dim, or a number of heads that divides it."
            )
        if self.kv_heads is not None:
            require_positive("model.kv_heads", self.kv_heads)
            if self.heads % self.kv_heads:
                raise UsageError(
                    f"{self.heads} heads cannot share {self.kv_heads} key/value heads. "
                    "kv_heads must divide heads."
                )

    def _check_kinds(self) -> None:
        """Blocks with a window and linear blocks are different ones, and each has its size."""
        for count, size in (("windowed_layers", "window"), ("linear_layers", "linear_state")):
            if getattr(self, count) < 0 or getattr(self, size) < 0:
                raise UsageError(f"model.{count} and model.{size} must not be negative.")
            if (getattr(self, count) > 0) != (getattr(self, size) > 0):
                raise UsageError(
                    f"model.{count} {getattr(self, count)} and model.{size} {getattr(self, size)} "
                    "do not fit each other: give both, or neither."
                )
        if self.windowed_layers + self.linear_layers > self.layers:
            raise UsageError(
                f"{self.windowed_layers} windowed and {self.linear_layers} linear blocks are more "
                f"than the {self.layers} layers. Give at most so many together."
            )

    def _check_mlp(self) -> None:
        if self.experts:
            require_positive("model.expert_hidden", self.expert_hidden)
            if not 1 <= self.experts_per_token <= self.experts:
                raise UsageError(
                    f"experts_per_token must be between 1 and {self.experts} experts, "
                    f"not {self.experts_per_token}."
                )
            if not 0 <= self.dense_layers < self.layers:
                raise UsageError(
                    f"dense_layers must be between 0 and {self.layers - 1}, "
                    f"not {self.dense_layers}."
                )
        else:
            require_positive("model.mlp_hidden", self.mlp_hidden)

    def classifier(self, classes: int = 2) -> Model:
        """The same body with a head that classifies sequences, as ``…ForSequenceClassification``.

        BERT's head reads the pooled first token, a decoder's the last one, without a bias.

        >>> Model.catalog("bert-base-uncased").classifier(2).parameters
        109483778
        """
        require_positive("classes", classes)
        encoder = self.kind == "encoder"
        return replace(
            self,
            name=f"{self.name} classifier",
            classes=classes,
            mlm_head=False,
            tied_embeddings=False,
            head_bias=encoder,
            pooler=encoder,
        )

    @property
    def longest_sequence(self) -> int:
        """Tokens that a learned table of positions allows; 0 = no such table."""
        learned = self.position == "learned" and self.kind != "vision"
        return self.max_positions - self.unused_positions if learned else 0

    def check_sequence(self, seq_len: int) -> None:
        """Refuse a sequence that the model has no positions for.

        Raises:
            UsageError: with the longest one.
        """
        positions = self.longest_sequence
        if positions and seq_len > positions:
            raise UsageError(
                f"{self.name} has {positions} positions; a sequence of {seq_len} tokens "
                f"does not fit them. Use seq_len {positions} or less."
            )

    @property
    def logit_width(self) -> int:
        """Width of the head's result: classes, else the vocabulary."""
        return self.classes or self.vocab

    @property
    def one_answer(self) -> bool:
        """Whether the head answers once per sequence, not once per token."""
        return bool(self.classes) or self.kind in {"vision", "module"}

    @property
    def measured(self) -> Measured | None:
        """The measured step of the script that trains it; None for every other model."""
        return None if self.traced is None else self.traced.measured

    @property
    def head_width(self) -> int:
        """Width of one head's content part."""
        return self.head_dim if self.head_dim is not None else self.hidden // self.heads

    @property
    def key_value_heads(self) -> int:
        """Key/value heads, resolved."""
        return self.kv_heads if self.kv_heads is not None else self.heads

    @property
    def query_width(self) -> int:
        """All query heads together: the width of q (with MLA: content and rotary part)."""
        return self.heads * (self.head_width + self.rope_head_dim)

    @property
    def key_width(self) -> int:
        """All key heads together."""
        return self.key_value_heads * (self.head_width + self.rope_head_dim)

    @property
    def value_width(self) -> int:
        """All value heads together."""
        return self.key_value_heads * (self.value_head_dim or self.head_width)

    @property
    def attention_width(self) -> int:
        """Width of attention's result before the output projection."""
        return self.heads * (self.value_head_dim or self.head_width)

    @property
    def full_layers(self) -> int:
        """Blocks that attend to the whole sequence."""
        return self.layers - self.windowed_layers - self.linear_layers

    @property
    def moe_layers(self) -> int:
        """Blocks with routed experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def parameters(self) -> int:
        """Exact number of parameters, embeddings included.

        >>> Model.catalog("llama-3-8b").parameters
        8030261248
        """
        return sum(_reader("counting").parameter_parts(self).values())

    @staticmethod
    def catalog(name: str) -> Model:
        """The published shape of that name; near misses are suggested.

        Raises:
            UnknownNameError: no such model in the catalog.
        """
        return _reader("catalog").model(name)

    @staticmethod
    def from_config(config: Mapping[str, Any] | str | Path | object) -> Model:
        """The shape in a Hugging Face ``config.json``: a path, its directory, a dict or an object.

        What is read by analogy, and any part left out, is said in a warning.

        Raises:
            UsageError: no such file, no JSON, a missing or impossible value.

        >>> sizes = {"n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257}
        >>> Model.from_config({"model_type": "gpt2", "n_positions": 1024, **sizes}).parameters
        124439808
        """
        return _reader("configs").from_config(config)

    @staticmethod
    def from_module(
        module: nn.Module,
        example_inputs: Any = None,
        name: str | None = None,
        block_types: Sequence[type[nn.Module]] | None = None,
    ) -> Model:
        """Describe a PyTorch module, also one on the meta device; needs torch.

        Args:
            module: a transformers model (its config is read) or any other module.
            example_inputs: a batch (tensor, tuple or dict); with it saved activations are measured.
            name: what to call it; its class by default.
            block_types: classes of the repeated blocks; the longest list of children by default.

        Raises:
            UsageError: a module without parameters, inputs it cannot run, no such blocks.
        """
        return _reader("modules").from_module(module, example_inputs, name, block_types)


def _reader(name: str) -> Any:
    """A module that imports `Model` itself: loaded by name, on use, so that there is no cycle."""
    return importlib.import_module(f"workbench.describe.{name}")


def usual_seq_len(model: Model) -> int:
    """Default tokens per sequence: 2048, or as many as the model has positions."""
    return min(USUAL_SEQ_LEN, model.longest_sequence or USUAL_SEQ_LEN)

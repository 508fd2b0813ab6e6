"""Traced modules: saved bytes by hand, against a real forward pass, and linear in the batch."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.describe import model_zoo as zoo  # noqa: E402
from workbench.describe import Model  # noqa: E402
from workbench.errors import UsageError  # noqa: E402

ZOO = ("UNet", "DiT", "Recommender", "TiedLanguageModel")


def really_saved(module: nn.Module, batch: tuple[torch.Tensor, ...]) -> int:
    """Bytes kept by a real forward pass on CPU; parameters and buffers left out."""
    static = {one.untyped_storage().data_ptr() for one in (*module.parameters(), *module.buffers())}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in static:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = module(*batch)
    total = sum(storage.nbytes() for storage in kept.values())
    del output
    return total


def test_an_mlp_by_hand() -> None:
    module = zoo.mlp(8, 16, 4)
    traced = Model.from_module(module, torch.randn(5, 8)).traced
    assert traced.parameters == 8 * 16 + 16 + 16 * 4 + 4
    # The first linear keeps its input (8 floats); ReLU keeps its result (16), the second's input.
    assert traced.saved_bytes == 4 * (8 + 16)
    assert traced.boundary_bytes == 4 * (8 + 16)
    assert traced.largest_block_parameters == 8 * 16 + 16
    assert traced.precision_bytes == 4


@pytest.mark.parametrize("name", ZOO)
def test_fake_and_real_agree(name: str) -> None:
    module = getattr(zoo, name)()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    for batch in (2, 4):
        example = zoo.inputs(name, batch)
        traced = Model.from_module(module, example).traced
        assert traced.saved_bytes == pytest.approx(
            really_saved_of_copy(module, example) / batch, rel=0.02
        )
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in module.modules())


def really_saved_of_copy(module: nn.Module, example: tuple[torch.Tensor, ...]) -> int:
    copy = type(module)()
    copy.load_state_dict(module.state_dict())
    return really_saved(copy, example)


@pytest.mark.parametrize("name", ZOO)
def test_saved_bytes_are_linear_in_the_batch(name: str) -> None:
    module = getattr(zoo, name)()
    two, four = (Model.from_module(module, zoo.inputs(name, batch)).traced for batch in (2, 4))
    for field in ("saved_bytes", "largest_block_saved_bytes", "boundary_bytes"):
        assert getattr(two, field) == pytest.approx(getattr(four, field), rel=0.02, abs=400)
    assert two.parameters == four.parameters == sum(one.numel() for one in module.parameters())


@pytest.mark.parametrize("name", ZOO)
def test_the_meta_device_gives_the_same(name: str) -> None:
    with torch.device("meta"):
        empty = getattr(zoo, name)()
        example = zoo.inputs(name, 2)
    real = Model.from_module(getattr(zoo, name)(), zoo.inputs(name, 2))
    assert Model.from_module(empty, example) == real
    assert real.kind == "module"
    assert real.name == name


def test_blocks_of_a_unet_and_a_dit() -> None:
    unet, example = zoo.UNet(), zoo.inputs("UNet", 2)
    model = Model.from_module(unet, example)
    assert model.layers == model.traced.blocks == 7
    sizes = [
        sum(one.numel() for one in block.parameters())
        for block in (*unet.down, unet.middle, *unet.up)
    ]
    assert model.traced.largest_block_parameters == max(sizes)
    assert 0 < model.traced.largest_block_saved_bytes < model.traced.saved_bytes
    assert 0 < model.traced.boundary_bytes < model.traced.saved_bytes
    dit = Model.from_module(zoo.DiT(), zoo.inputs("DiT", 2)).traced
    assert dit.blocks == 4
    # The residual stream before each block (16 tokens of 64) and the condition, once.
    assert dit.boundary_bytes == 4 * (4 * 16 * 64 + 64)
    assert dit.saved_bytes > 4 * dit.largest_block_saved_bytes


def test_block_types_are_obeyed_or_refused_by_name() -> None:
    unet = zoo.UNet()
    assert Model.from_module(unet, block_types=[nn.Conv2d]).traced.blocks == 21
    with pytest.raises(UsageError, match=r"UNet has no block of the type LSTM. It has: .*Conv2d"):
        Model.from_module(unet, block_types=[nn.LSTM])
    with pytest.raises(UsageError, match="no block of the type nothing"):
        Model.from_module(unet, block_types=[])


def test_a_recommender_is_its_tables() -> None:
    traced = Model.from_module(zoo.Recommender(), zoo.inputs("Recommender", 8)).traced
    assert traced.largest_block_parameters == 1000 * 16
    assert traced.saved_bytes < 4000


def test_half_precision_halves() -> None:
    full = Model.from_module(zoo.mlp(8, 16, 4), torch.randn(4, 8)).traced
    half = Model.from_module(zoo.mlp(8, 16, 4).bfloat16(), torch.randn(4, 8).bfloat16()).traced
    assert (half.precision_bytes, 2 * half.saved_bytes) == (2, full.saved_bytes)


def test_without_inputs_activations_are_unknown() -> None:
    traced = Model.from_module(nn.Linear(3, 4)).traced
    assert (traced.parameters, traced.largest_block_parameters, traced.blocks) == (16, 16, 1)
    assert traced.saved_bytes is traced.largest_block_saved_bytes is traced.boundary_bytes is None


class Branching(nn.Linear):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return super().forward(value) if value.sum() > 0 else value


def test_a_dict_gives_keyword_arguments_and_frozen_parts_keep_less() -> None:
    module = zoo.UNet()
    image, step = zoo.inputs("UNet", 2)
    by_name = Model.from_module(module, {"image": image, "step": step})
    assert by_name == Model.from_module(module, [image, step])
    module.down.requires_grad_(requires_grad=False)
    module.head.requires_grad_(requires_grad=False)
    less = Model.from_module(module, (image, step)).traced
    assert less.saved_bytes < by_name.traced.saved_bytes


@pytest.mark.parametrize(
    ("module", "example", "sentence"),
    [
        (nn.ReLU(), None, "has no parameters"),
        (nn.LazyLinear(3), None, "lazy parameters"),
        ("resnet50", None, "must be a torch.nn.Module, not str"),
        (nn.Linear(3, 4), torch.randn(2, 5), r"could not run .*Give one batch"),
        (nn.Linear(3, 4), {"wrong": torch.randn(2, 3)}, "could not run .*wrong"),
        (nn.Linear(3, 4), 7, "no tensor with a batch"),
        (nn.Linear(3, 4), (), "no tensor with a batch"),
        (nn.Linear(3, 4), torch.tensor(1.0), "no tensor with a batch"),
        (nn.Linear(3, 4).requires_grad_(requires_grad=False), torch.randn(2, 3), "gets a gradient"),
        (Branching(3, 3), torch.randn(2, 3), "branches on values"),
    ],
)
def test_what_cannot_be_described_says_why(module: object, example: object, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        Model.from_module(module, example)


def test_wrappers_and_compilation_change_nothing() -> None:
    module, example = zoo.DiT(), zoo.inputs("DiT", 2)
    plain = Model.from_module(module, example)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, while it loads inductor
        assert Model.from_module(torch.compile(module), example) == plain
        for block in module.blocks:
            block.compile()
        assert Model.from_module(module, example) == plain


class Repeated(nn.Module):
    """One block, four times: its parameters count once, what it keeps four times."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([zoo.mlp(8, 16, 8), zoo.mlp(8, 16, 8)])

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            for block in self.blocks:
                value = block(value)
        return value


def test_a_block_that_runs_again_keeps_again() -> None:
    traced = Model.from_module(Repeated(), torch.randn(2, 8)).traced
    assert (traced.blocks, traced.parameters) == (2, 2 * (8 * 16 + 16 + 16 * 8 + 8))
    assert traced.boundary_bytes == 8 * 8 * 4
    assert traced.largest_block_saved_bytes == 16 * 4
    assert traced.saved_bytes == 8 * (8 + 16) * 4


def test_eval_mode_is_said() -> None:
    with pytest.warns(UserWarning, match="in eval mode"):
        Model.from_module(nn.Linear(3, 4).eval(), torch.randn(2, 3))


def small_llama() -> tuple[nn.Module, object]:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        vocab_size=99,
    )
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config), config


def test_a_transformers_model_is_described_by_its_config() -> None:
    module, config = small_llama()
    model = Model.from_module(module, name="mine")
    assert (model.kind, model.layers, model.hidden, model.name) == ("decoder", 2, 64, "mine")
    assert model.parameters == sum(one.numel() for one in module.parameters())
    assert model.parameters == Model.from_config(config).parameters
    traced = Model.from_module(
        module.train(),
        {"input_ids": torch.zeros(2, 8, dtype=torch.long)},
        block_types=[type(module.model.layers[0])],
    ).traced
    assert traced.blocks == 2
    assert traced.parameters == model.parameters


def test_a_transformers_model_that_its_config_does_not_describe_is_traced() -> None:
    module, _ = small_llama()
    with pytest.warns(UserWarning, match="described as a traced module instead"):
        bare = Model.from_module(module.model)
    assert bare.kind == "module"
    assert bare.traced.blocks == 2
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(d_model=32, d_ff=64, num_layers=2, num_heads=2, vocab_size=50)
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        t5 = transformers.T5ForConditionalGeneration(config)
    assert Model.from_module(t5).kind == "module"

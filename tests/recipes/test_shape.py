"""The recipes' catalogue and shape(): right, fast, and without torch."""

import subprocess
import sys

import pytest
from gpt_model import GPT

from workbench.recipes import find, recipe_options, recipes, shape

SHAPES = [
    (),
    ("--size", "1"),
    ("--size", "5"),
    ("--layers", "3", "--hidden", "96", "--heads", "4"),
    ("--size", "2", "--hidden", "320"),
    ("--hidden", "32"),
]


@pytest.mark.parametrize("arguments", SHAPES)
def test_shape_is_that_of_the_real_module(arguments):
    known = shape(arguments)
    model = GPT(known["layers"], known["hidden"], known["heads"])
    assert known["parameters"] == sum(weight.numel() for weight in model.parameters())
    assert known["layers"] == len(model.blocks)
    assert known["vocab"] == model.embedding.num_embeddings
    assert known["mlp"] == model.blocks["0"].up.out_features
    assert known["tied"] is (model.embedding.weight is model.head.weight)


def test_size_is_one_dial_and_overrides_come_after():
    assert [shape(["--size", "12"])[key] for key in ("layers", "hidden", "heads")] == [12, 768, 12]
    known = shape(["--size", "12", "--layers", "2"])
    assert (known["layers"], known["hidden"]) == (2, 768)


def test_shape_tells_the_run_too():
    batch = ["--seq-len", "64", "--micro-batch", "3", "--accumulate", "5"]
    known = shape([*batch, "--precision", "bf16", "--steps", "7"])
    assert (known["seq_len"], known["micro_batch"], known["accumulate"]) == (64, 3, 5)
    assert (known["precision"], known["steps"], known["minutes"]) == ("bf16", 7, None)
    assert shape()["minutes"] == 2.0
    both = shape(["--steps", "7", "--minutes", "0.5"])
    assert (both["steps"], both["minutes"]) == (7, 0.5)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--sise", "2"], "--sise 2. Did you mean --size or --seed? --help lists all."),
        (["--size", "0"], "--size 0"),
        (["--size", "two"], "two"),
        (["--minutes", "-1"], "--minutes -1"),
        (["--lr", "nan"], "--lr nan"),
        (["--precision", "fp4"], "fp4"),
        (["--precision", "fp8", "--hidden", "40"], "--hidden 40 is not a multiple of 16"),
        (["--precision", "fp8", "--tp", "2"], "works with data parallelism"),
        (["--hidden", "100", "--heads", "3"], "--heads 3"),
        (["--steps"], "--steps"),
        (["extra"], "extra"),
        (["--help"], "--help"),
    ],
)
def test_bad_arguments_are_one_clear_line(arguments, part, capsys):
    with pytest.raises(ValueError) as caught:
        shape(arguments)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capsys.readouterr() == ("", "")


def test_the_help_shows_a_default_where_there_is_one():
    parser = recipe_options.Parser("Train.", allow_abbrev=False)
    add = parser.group("schedule")
    add("--steps", type=int, default=200, help="optimizer steps")
    add("--lr", type=float, help="peak learning rate; default: from the width")
    add("--compile", action="store_true", help="torch.compile each block")
    told = " ".join(parser.format_help().split())
    assert "optimizer steps (default: 200)" in told
    assert told.count("default") == 2


def test_find_suggests_the_nearest_name():
    assert find("gpt").path.is_file()
    with pytest.raises(ValueError, match="gpt"):
        find("gtp")


@pytest.mark.parametrize("recipe", recipes().values(), ids=recipes())
def test_defaults_are_accepted(recipe):
    users = recipe.name in {"finetune", "finetune_image"}
    own = ("--model", "m", "--data", "d") if users else ()
    assert shape((*recipe.cpu_arguments, *own), recipe=recipe.name)["precision"] == "fp32"
    teaching = {"tensor_parallel", "context_parallel", "pipeline"}  # one idea, fp32 throughout
    wanted = "fp32" if recipe.name in teaching else "bf16"
    assert shape((*recipe.gpu_arguments, *own), recipe=recipe.name)["precision"] == wanted


def test_neither_the_catalogue_nor_shape_loads_torch():
    code = (
        "import sys; from workbench.recipes import shape; shape(); "
        "sys.exit(sorted({'torch', 'accelerate', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "[]\n")


def test_the_script_refuses_a_wrong_flag_in_one_line_before_torch():
    done = subprocess.run(
        [sys.executable, "-X", "importtime", find("gpt").path, "--hidden", "100", "--heads", "3"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    said = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert said == ["gpt.py: error: --hidden 100 is not a multiple of 2 x --heads 3"]
    assert "torch" not in done.stderr


def test_the_script_stays_readable_in_one_sitting():
    source = find("gpt").path.read_text()
    assert len(source.splitlines()) <= 300
    assert "workbench." not in source
    assert "import workbench" not in source

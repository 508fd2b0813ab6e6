"""The notebook on memory: short, clean, and every claim in it holds when it is run."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

pytest.importorskip("anywidget", reason="the lab extra is not installed")

import nbformat

from tests.widgets.notebook_run import assert_form

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "01_memory.ipynb"


def outputs(book: nbformat.NotebookNode) -> str:
    found = []
    for cell in book.cells:
        for output in cell.get("outputs", []):
            found.append(output.get("text", "") or output.get("data", {}).get("text/plain", ""))
    return "\n".join(found)


def execute(book: nbformat.NotebookNode, folder: Path) -> None:
    client = pytest.importorskip("nbclient")
    client.NotebookClient(book, timeout=120, kernel_name="python3").execute(cwd=str(folder))


def test_it_is_short_and_clean() -> None:
    assert_form(nbformat.read(NOTEBOOK, as_version=4))


@pytest.mark.slow
def test_every_claim_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("WORKBENCH_STORE", str(tmp_path / "runs"))
    book = nbformat.read(NOTEBOOK, as_version=4)
    execute(book, tmp_path)
    said = outputs(book)
    for claim in (
        r"\[4\.0, 4\.0, 4\.0, 4\.0\]",  # weight, gradient, two moments
        r"bf16 +16\.0 bytes",
        r"bf16-pure +8\.0 bytes",
        r"294,912 in bf16, 1,343,488 under autocast",
        r"^4\.0\d*$",  # log-softmax, bytes per logit
        r"^1\.3333",  # full recompute
        r"8 x 1: states 100 GiB",
        r"1 x 8: states 100 GiB",
        r"llama-2-7b .*fits an H100: False",
        r"1 GPU  LoRA r16  \(trains something else\)",
        r"ZeRO-1: on 8 GPUs 2\.9x less, on 64 3\.8x",
        r"ZeRO-2: on 8 GPUs 4\.3x less, on 64 7\.2x",
        r"ZeRO-3: on 8 GPUs 8\.0x less, on 64 64\.0x",
        r"llama-3-70b: 14\.1 cards",
        r"llama-3\.1-405b: 81\.2 cards",
        r"none +139 GiB on the card, fits: False",
        r"nf4 +4\d GiB on the card, fits: True",
        r"= on the card",  # the calculator, as text
    ):
        assert re.search(claim, said, re.MULTILINE), claim


@pytest.mark.parametrize(
    ("answers", "wrong"),
    [(("24 * 2**30 / 16", "12"), None), (("1e9", "12"), "24 GiB"), (("1.61e9", "8"), "12/N = 5")],
)
def test_exercises_are_checked(answers: tuple[str, str], wrong: str | None) -> None:
    book = nbformat.read(NOTEBOOK, as_version=4)
    (cell,) = [one for one in book.cells if "most = None" in one.source]
    source = cell.source.replace("most = None", f"most = {answers[0]}")
    source = source.replace("gpus = None", f"gpus = {answers[1]}")
    if wrong is None:
        exec(source, {})
    else:
        with pytest.raises(AssertionError, match=re.escape(wrong)):
            exec(source, {})


def test_how_torch_wants_recompute() -> None:
    torch = pytest.importorskip("torch")
    from torch.distributed.algorithms._checkpoint import checkpoint_wrapper
    from torch.utils.checkpoint import checkpoint_sequential

    accepted = inspect.signature(checkpoint_wrapper.apply_activation_checkpointing).parameters
    assert {"check_fn", "auto_wrap_policy"} < accepted.keys()
    assert "activation_checkpointing_policy" not in accepted
    layers = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    inputs = torch.ones(1, 2, requires_grad=True)
    with pytest.warns(UserWarning, match="use_reentrant parameter should be passed explicitly"):
        checkpoint_sequential(layers, 2, inputs)
    checkpoint_sequential(layers, 2, inputs, use_reentrant=False)  # a warning would be an error

"""Export of real runs: what every strategy has saved becomes one model, to the last bit."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from tests.conftest import until
from tests.trained_model.made import exported_run
from workbench.errors import HostError, UsageError, WorkbenchError
from workbench.store.layout import RunPaths
from workbench.trained_model.conversation import Conversation, Sampling
from workbench.trained_model.export import export_model
from workbench.trained_model.exported import ModelExport
from workbench.trained_model.source import trained_model

GPT = (
    *("--layers", "2", "--hidden", "32", "--heads", "2", "--seq-len", "16", "--micro-batch", "2"),
    *("--steps", "2", "--eval-every", "0", "--checkpoint-every", "2", "--fingerprint"),
)
LORA = ("--size", "1", "--steps", "2", "--checkpoint-every", "2", "--micro-batch", "2")


def run_of(start: Any, recipe: str, arguments: tuple[str, ...], strategy: str) -> wb.Run:
    run = start(recipe, arguments, strategy=strategy, processes=2)
    assert run.wait(timeout=300) == "succeeded", run.logs(rank=0, tail=5)
    return run


def leftovers(folder: Path) -> list[str]:
    return [one.name for one in folder.iterdir() if "partial" in one.name]


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "zero2", "zero3", "tp", "pp"])
def test_every_strategy_is_exported_bit_by_bit(start: Any, tmp_path: Path, strategy: str) -> None:
    run = run_of(start, "gpt", GPT, strategy)
    wanted = ModelExport(to=str(tmp_path / "model"), shard_gb=1e-4)  # several shards
    exported = export_model(RunPaths(run.directory), wanted)
    (own,) = re.findall(r"fingerprint (\w{64})", run.logs(rank=0))
    assert exported.fingerprint == own  # of the whole model at the last step, gathered by the ranks
    assert exported.step == 2
    assert exported.family == "gpt"
    shards = sorted(one.name for one in (tmp_path / "model").glob("*.safetensors"))
    assert len(shards) > 1
    assert not leftovers(tmp_path)


@pytest.mark.slow
@pytest.mark.full
def test_lora_is_merged_and_answers_beside_its_base(start: Any, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run = run_of(start, "lora", LORA, "ddp")
    paths = RunPaths(run.directory)
    merged = export_model(paths, ModelExport(to=str(tmp_path / "merged")))
    assert merged.merged
    assert merged.loads
    assert merged.logits_difference is not None
    assert merged.logits_difference <= 1e-5
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "merged")
    assert tokenizer("é\n")["input_ids"] == [*"é\n".encode()]
    assert model(torch.tensor([tokenizer("def f")["input_ids"]])).logits.isfinite().all()
    alone = export_model(paths, ModelExport(to=str(tmp_path / "alone"), adapter=True))
    assert (tmp_path / "alone" / "adapter_model.safetensors").is_file()
    assert alone.parameters < merged.parameters
    how = Sampling(max_tokens=4, temperature=0)
    with Conversation(trained_model(paths)) as conversation:
        told = list(conversation.ask("def f(", how))
        assert {one.side for one in told} == {"", "base", "trained"}
        again = list(conversation.ask("def f(", how))  # loaded already
        assert [one.text for one in again] == [one.text for one in told if one.side]
        os.kill(conversation.pid, signal.SIGKILL)
        with pytest.raises(WorkbenchError, match="SIGKILL"):
            list(conversation.ask("x"))


@pytest.mark.slow
@pytest.mark.full
def test_all_weights_of_a_sharded_run_load_in_plain_transformers(
    start: Any, tmp_path: Path
) -> None:
    run = run_of(start, "lora", (*LORA, "--lora-rank", "0"), "fsdp")
    wanted = ModelExport(to=str(tmp_path / "model"), dtype="bf16")
    exported = export_model(RunPaths(run.directory), wanted)
    assert exported.loads
    assert exported.dtype == "bfloat16"
    assert not exported.merged
    with pytest.raises(UsageError, match="leave --adapter out"):
        export_model(RunPaths(run.directory), ModelExport(to=str(tmp_path / "a"), adapter=True))


@pytest.mark.slow
def test_the_recipe_s_model_stands_by_itself(tmp_path: Path) -> None:
    """Its folder has the file that defines it; README.md's own lines load it."""
    run, folder = exported_run(tmp_path), tmp_path / "model"
    exported = export_model(RunPaths(run), ModelExport(to=str(folder)))
    text = (folder / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    subprocess.run([os.sys.executable, "-c", code], cwd=folder, check=True)
    assert exported.fingerprint in text
    assert str(tmp_path) not in text
    assert "hf_secret" not in text
    assert "license: unknown" in text
    with pytest.raises(UsageError, match="exists: name a new folder"):
        export_model(RunPaths(run), ModelExport(to=str(folder)))
    before = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    told = json.loads((folder / "config.json").read_text())
    assert told["layers"] == 1
    assert before


@pytest.mark.slow
def test_a_killed_export_leaves_nothing(tmp_path: Path) -> None:
    run = exported_run(tmp_path)
    code = (
        "import os, sys; from pathlib import Path\n"
        "from workbench.store.layout import RunPaths\n"
        "from workbench.trained_model.export import export_model\n"
        "from workbench.trained_model.exported import ModelExport\n"
        f"export_model(RunPaths(Path({str(run)!r})), ModelExport(to={str(tmp_path / 'model')!r}),"
        " on_progress=lambda *_: os.kill(os.getpid(), 9))"
    )
    done = subprocess.run([os.sys.executable, "-c", code], check=False)
    assert done.returncode == -9
    until(lambda: not leftovers(tmp_path), what="the child removes what is half")
    assert not (tmp_path / "model").exists()


@pytest.mark.slow
def test_a_disk_that_is_full_leaves_nothing_and_says_so(tmp_path: Path) -> None:
    run = exported_run(tmp_path)
    before = sorted(str(one) for one in tmp_path.rglob("*"))
    code = (
        "import resource; from pathlib import Path\n"
        "from workbench.errors import HostError\n"
        "from workbench.store.layout import RunPaths\n"
        "from workbench.trained_model.export import export_model\n"
        "from workbench.trained_model.exported import ModelExport\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        f"run, to = RunPaths(Path({str(run)!r})), {str(tmp_path / 'model')!r}\n"
        "try:\n    export_model(run, ModelExport(to=to))\n"
        "except HostError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [os.sys.executable, "-c", code], check=False, capture_output=True, text=True
    )
    assert "The disk is full, or files may not grow so large: nothing was written" in done.stdout
    assert done.stdout.count("\n") == 1
    assert sorted(str(one) for one in tmp_path.rglob("*")) == before


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no such step": ({"step": 7}, "no checkpoint of step 7: 2"),
    "no such name": ({"checkpoint": "step-3"}, "Unknown checkpoint 'step-3'"),
    "two names": ({"checkpoint": "a", "step": 1}, "give one of them"),
    "unknown dtype": ({"dtype": "int3"}, "dtype must be fp32, bf16 or fp16, not"),
    "no shard": ({"shard_gb": 0.0}, "shard_gb"),
    "negative step": ({"step": -1}, "step"),
    "adapter of full weights": ({"adapter": True}, "leave --adapter out"),
    "target is a file": ({"to": "{tmp}/file"}, "exists: name a new folder"),
    "target below a file": ({"to": "{tmp}/file/model"}, "cannot be written"),
    "not a checkpoint": ({"checkpoint": "{tmp}/empty"}, "does not hold weights"),
    "a pickle": ({"checkpoint": "{tmp}/evil"}, "is not unpickled"),
    "cut short": ({"checkpoint": "{tmp}/short"}, "cut short"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_writes_nothing(tmp_path: Path, case: str) -> None:
    run = exported_run(tmp_path)
    (tmp_path / "file").write_text("kept")
    (tmp_path / "empty").mkdir()
    for name, content in (("evil/model.pt", EVIL), ("short/model.safetensors", b"\x40\0\0")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(content)
    values, expected = BAD[case]
    values = {
        name: one.format(tmp=tmp_path) if isinstance(one, str) else one
        for name, one in {"to": "{tmp}/out", **values}.items()
    }
    before = sorted(str(one) for one in tmp_path.rglob("*"))
    with pytest.raises((UsageError, HostError, OSError), match=re.escape(expected)) as raised:
        export_model(RunPaths(run), ModelExport(**values))
    assert "Traceback" not in str(raised.value)
    assert "\n" not in str(raised.value)
    assert sorted(str(one) for one in tmp_path.rglob("*")) == before
    assert not (tmp_path / "ran").exists()


EVIL = b"cos\nsystem\n(S'touch ran'\ntR."

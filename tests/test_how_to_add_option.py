"""CONTRIBUTING's way to add an option of a strategy: one field and its effect, then in every face."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DECLARED = (
    "workbench/describe/library_options.py",
    '    """Options of torch\'s FSDP."""\n',
    (
        '    cast_buffers: Annotated[bool, Option(help="FSDP: keep buffers in fp32.")] = False\n'
        "    backward_prefetch: Annotated[str, Option(help='FSDP1: none, pre or post.', "
        "choices=('none', 'pre', 'post')), Scope(set_by=('fsdp',), name='FSDP1', "
        "needs=('engine', 'fsdp1'))] = 'none'\n"
    ),
)
WRITTEN = (
    "workbench/launching/prepare/accelerate_config.py",
    "FSDP_KEYS = {",
    (
        '"cast_buffers": FsdpKey(key="fsdp_cast_buffers", absent=False), '
        '"backward_prefetch": FsdpKey(key="fsdp_backward_prefetch", absent="none", words='
        '{"NO_PREFETCH": "none", "BACKWARD_PRE": "pre", "BACKWARD_POST": "post"}), '
    ),
)
COUNTED = (
    "workbench/estimate/states.py",
    "    weights = sharded(ways.weights, width.weight, width.adapter, frozen)\n",
    "    weights += 2 * context.model.head_width // 2 * strategy.fsdp.cast_buffers\n",
)
FACES = """
import json
import pathlib
import workbench as wb
from workbench.cli.commands import load
from workbench.engines.export_request import export
from workbench_widgets.cost.fields import fields as cost_fields
from workbench_widgets.memory.fields import fields as memory_fields
from workbench_widgets.strategy.choice import StrategyChoice
from workbench_widgets.strategy.fields import fields

def job(**more):
    return wb.Job.of("llama-3-8b", gpu="h100", gpus=8, strategy="fsdp", **more)

cast = job(cast_buffers=True)
more = wb.training_memory(cast).allocated_bytes - wb.training_memory(job()).allocated_bytes
assert more == 2 * 64, more
for command in ("memory", "cost", "advise", "launch", "resume", "fork"):
    flags = [flag for one in load(command).params for flag in one.opts]
    assert "--cast-buffers" in flags, command
record = json.loads(json.dumps(cast.strategy.options()))
assert wb.Strategy.recorded(record).fsdp.cast_buffers is True
spread = {"strategy": "fsdp", "processes": 2, "cpu": True, "options": {"cast_buffers": True}}
launched = wb.request("gpt", **spread)
assert '"fsdp_cast_buffers": true' in launched.shell()
(text,) = [text for path, text in launched.config_files.items() if path.endswith(".yaml")]
pathlib.Path("accelerate.yaml").write_text(text)
assert wb.read_strategy("accelerate.yaml")[0].fsdp.cast_buffers is True
for name in (None, "fsdp1"):
    more = {"options": {"backward_prefetch": "pre", "engine": name}}
    try:
        prefetched = wb.request("gpt", **spread | more)
        assert name == "fsdp1"
    except wb.UsageError as error:
        assert name is None and "backward prefetch (pre) is an option of FSDP1" in str(error)
(text,) = [text for path, text in prefetched.config_files.items() if path.endswith(".yaml")]
assert '"fsdp_backward_prefetch": "BACKWARD_PRE"' in text
assert "backward_prefetch" not in launched.shell()
pathlib.Path("fsdp1.yaml").write_text(text)
assert wb.read_strategy("fsdp1.yaml")[0].fsdp.backward_prefetch == "pre"
exported = export(launched.job, "slurm")
assert any('"fsdp_cast_buffers": true' in text for text in exported.files.values())
try:
    wb.request("gpt", **spread | {"strategy": "ddp"})
except wb.UsageError as error:
    assert "an option of FSDP" in str(error)
else:
    raise AssertionError("DDP took an option of FSDP")
choice = StrategyChoice.from_options({"strategy": "fsdp", "processes": 2, "cast_buffers": True})
assert choice.strategy().fsdp.cast_buffers is True and "cast_buffers" not in choice.hidden()
assert "cast_buffers" in choice.with_options({"strategy": "ddp"}).hidden()
labels = {one["name"]: one["label"] for group in fields() for one in group["fields"]}
assert labels["cast_buffers"] == "Keep buffers in fp32"
for calculator in (cost_fields, memory_fields):
    names = {one["name"] for group in calculator() for one in group["fields"]}
    assert "cast_buffers" in names, calculator
"""


@pytest.mark.slow
def test_an_option_needs_its_declaration_and_its_effect_alone(tmp_path: Path) -> None:
    """In a copy of the packages; beside these three files come its golden number and its row."""
    for package in ("workbench", "widgets/workbench_widgets"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignored)
    for name, after, line in (DECLARED, WRITTEN, COUNTED):
        text = (tmp_path / name).read_text()
        assert text.count(after) == 1
        (tmp_path / name).write_text(text.replace(after, after + line))
    paths = os.pathsep.join(map(str, (tmp_path, tmp_path / "widgets")))
    asked = subprocess.run(
        [sys.executable, "-c", FACES],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.returncode == 0, asked.stderr

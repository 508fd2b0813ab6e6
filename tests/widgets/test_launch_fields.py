"""The launch form's fields: in step with the text, checked, predicted, and read from any script."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import pytest

pytest.importorskip("anywidget", reason="the lab extra is not installed")

from workbench_widgets import Launcher
from workbench_widgets.launch.arguments import Arguments
from workbench_widgets.launch.folders import listing
from workbench_widgets.launch.launch_form import LaunchForm

import workbench as wb
from tests.conftest import until

SCRIPT = """import argparse
p = argparse.ArgumentParser()
g = p.add_argument_group("model")
g.add_argument("--depth", type=int, default=4, help="number of blocks")
p.add_argument("--lr", type=float, required=True)
p.add_argument("--kind", choices=["a", "b"], default="a")
p.add_argument("--bf16", action="store_true")
p.add_argument("--out-dir")
{more}p.parse_args()
"""


@pytest.fixture
def form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT.format(more=""))
    form = Launcher(store=tmp_path / "runs", target="train.py", cpu=True, arguments="--x 'a  b'")
    yield form
    form.close()


def move(arguments: Arguments, **changes: object) -> dict:
    named = {f"--{name.replace('_', '-')}": value for name, value in changes.items()}
    arguments._receive("change", {"changes": named, "token": "page:1"})
    assert arguments.answered == "page:1"
    return arguments.controls


def test_fields_and_text_follow_each_other(form: Launcher) -> None:
    arguments = form.fields.arguments
    titles = [group["title"] for group in arguments.form["groups"]]
    assert titles == ["Model", "Options"]
    assert "nothing was run" in arguments.form["note"]
    assert arguments.controls["missing"] == ["--lr"]
    shown = move(arguments, lr="1e-4", bf16=True, kind="b")
    assert arguments.value == "--x 'a  b' --lr 1e-4 --bf16 --kind b"
    assert shown["changed"] == ["--lr", "--kind", "--bf16"]
    assert shown["missing"] == []
    arguments._receive("change", {"changes": {"": "--depth=9 --y"}, "token": "page:1"})
    assert arguments.controls["values"]["--depth"] == "9"
    assert arguments.controls["values"]["--bf16"] is False
    assert move(arguments, depth="")["changed"] == []
    assert arguments.value == "--y"


def test_a_wrong_value_is_said_at_its_field_and_no_figure_is_left(form: Launcher) -> None:
    form.fields.target_menu.value = "gpt"
    arguments = form.fields.arguments
    arguments.value = ""
    until(lambda: "a rank" in arguments.figure["forecast"])
    before = arguments.figure["forecast"]
    move(arguments, micro_batch="16")
    until(lambda: arguments.figure["forecast"] not in {"", before})
    move(arguments, micro_batch="many")
    until(lambda: form.button.disabled)
    assert "give a whole number" in arguments.controls["problems"]["--micro-batch"]
    assert arguments.figure["forecast"] == ""
    assert form.picker.figure["grid"]["ranks"] == 0
    move(arguments, micro_batch="16", heads="3")
    until(lambda: "--heads" in str(arguments.controls["problems"]))
    move(arguments, heads="")
    until(lambda: not form.button.disabled)
    assert not any(arguments.controls["problems"].values())


def test_an_open_quote_is_said_and_nothing_is_lost(form: Launcher) -> None:
    arguments = form.fields.arguments
    arguments._receive("change", {"changes": {"": "--lr 1 'open"}, "token": "page:1"})
    assert "No closing quotation" in arguments.controls["problems"][""]
    assert move(arguments, depth="3")["problems"]["--depth"]
    assert arguments.value == "--lr 1 'open"


def test_a_script_is_run_after_a_click_alone(form: Launcher, tmp_path: Path) -> None:
    loop = "open('ran', 'w')\nfor n in ('--a', '--b'):\n    p.add_argument(n)\n"
    (tmp_path / "more.py").write_text(SCRIPT.format(more=loop))
    arguments = form.fields.arguments
    form.fields.path.value = "more.py"
    assert arguments.form["can_run"]
    assert not (tmp_path / "ran").exists()
    thread = arguments.read_by_run()
    assert thread is not None
    thread.join()
    assert (tmp_path / "ran").exists()
    assert "--b" in arguments.controls["values"]
    assert not arguments.form["running"]


def test_a_script_that_is_not_named_yet_is_a_hint(form: Launcher) -> None:
    form.fields.path.value = ""
    until(lambda: "Give the path" in form.picker.figure["headline"])
    assert not form.picker.problem
    assert form.fields.arguments.form["groups"] == []


def test_the_picker_stays_below_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / ".hidden").touch()
    (tmp_path / "in" / "train.py").touch()
    (tmp_path / "in" / "notes.txt").touch()
    found = listing("in", (".py",), tmp_path)
    assert found["entries"] == [
        {"name": "deep", "folder": True},
        {"name": "train.py", "folder": False},
    ]
    assert listing("../..", (), tmp_path)["folder"] == ""
    assert listing("/etc", (), tmp_path)["folder"] == ""
    assert "No such file" in listing("gone", (), tmp_path)["problem"]
    form = Arguments("", store=tmp_path / "runs")
    sent: list[dict] = []
    form.send = sent.append  # type: ignore[method-assign]
    form._receive("list", {"folder": "../../.."})
    assert sent[0]["folder"] == ""
    form.close()


def test_the_largest_micro_batch_fills_its_field_or_says_why_not(form: Launcher) -> None:
    form.fields.target_menu.value = "gpt"
    arguments = form.fields.arguments
    arguments.value = ""
    until(lambda: bool(arguments.figure["forecast"]))
    assert arguments.figure["batch"] == ""  # no button on CPU ranks: nothing is known to fill
    assert "name a GPU" in arguments.largest_micro_batch()
    look = form.picker.seen
    assert look.request is not None
    card = wb.Job.of("gpt2", gpu="l4", gpus=2).cluster
    request = dataclasses.replace(look.request, device="cuda", cluster=card)
    arguments.show_look(dataclasses.replace(look, request=request))
    assert arguments.figure["batch"] == "--micro-batch"
    note = arguments.largest_micro_batch()
    filled = arguments.controls["values"]["--micro-batch"]
    assert int(filled) == wb.largest_micro_batch(request.job).value > 1
    assert note.startswith(f"{filled} fits")


def test_the_cpu_gets_the_arguments_for_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wb, "detect_host", lambda: wb.Cluster.rented("h100", gpus=2))
    recipe = wb.recipes.find("gpt")
    on_cpu, on_gpu = shlex.join(recipe.cpu_arguments), shlex.join(recipe.gpu_arguments)
    assert LaunchForm(store=tmp_path, target="gpt", cpu=True).arguments.value == on_cpu
    form = LaunchForm(store=tmp_path, target="gpt")
    form.observe(lambda _: None)
    assert form.arguments.value == on_gpu
    form.cpu.value = True
    assert form.arguments.value == on_cpu
    form.arguments.value = "--steps 3"
    form.cpu.value = False
    assert form.arguments.value == "--steps 3"


def test_a_message_names_the_forms_controls_and_not_its_flags(form: Launcher) -> None:
    options, picker = form.fields.options, form.picker
    options["max_kwh"].value = "5"
    picker.look()
    said = picker.problem["message"]
    assert said == form.preview.problem
    assert said.startswith('"Maximum kWh" 5 needs energy')
    assert said.endswith('Limit the time instead: "Ends after (hours)".')
    options["max_kwh"].value = ""
    form.fields.target_menu.value = "gpt"
    picker.set(processes=500)
    assert '"Processes" 2 to 4 is usual' in picker.problem["message"]


def test_the_scripts_own_flags_stay_in_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    more = 'p.add_argument("--port", type=int)\np.add_argument("--name")\n'
    (tmp_path / "train.py").write_text(SCRIPT.format(more=more))
    form = Launcher(store=tmp_path / "runs", target="train.py", cpu=True, arguments="--lr 1")
    labels = form.fields.labels()
    form.close()
    assert labels["--max-usd"] == "Maximum $"
    assert not {"--port", "--name"} & labels.keys()

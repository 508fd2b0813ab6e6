"""``--help``: what a newcomer reads first; and the numbers that each option takes."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.table import Table

import workbench as wb
from tests.cli.conftest import Command
from workbench.cli import run_commands, terminal
from workbench.cli.commands import COMMANDS, SECTIONS, load
from workbench.engines import trainer_export
from workbench.errors import UsageError


def all_commands() -> Iterator[tuple[str, Any]]:
    """Every command that does something, with its whole name."""
    for name in COMMANDS:
        command = load(name)
        parts: dict[str, Any] = getattr(command, "commands", {})
        yield from ((f"{name} {part}", inner) for part, inner in parts.items())
        if not parts:
            yield name, command


def test_the_list_of_commands_has_each_once_with_its_whole_sentence(command: Command) -> None:
    listed = [name for names in SECTIONS.values() for name in names.split()]
    assert sorted(listed) == sorted([*COMMANDS, "version"])
    for arguments in ((), ("--help",)):
        result = command(*arguments, columns=80)
        assert (result.code, result.err) == (0, "")
        text = " ".join(result.out.split())
        for name, source in COMMANDS.items():
            assert f"{name} {source.summary}" in text
    assert "no trial runs twice." in " ".join(command("sweep", columns=80).out.split())


def test_the_help_of_each_command_has_plain_placeholders(command: Command) -> None:
    for name, _ in all_commands():
        text = command(*name.split(), "--help").out
        assert command(*name.split(), "-h").out == text
        assert not re.search(r"<list|\{[A-Z]|\[\[|range>|\.\.\.\]*\.\.\.", text), name


def test_options_of_a_job_stand_below_their_topics(command: Command) -> None:
    text = command("memory", "--help").out
    topics = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    assert topics == [
        *("Options", "What is trained", "Where it runs"),
        *("How it is spread", "What the trainer does"),
    ]
    assert text.index("--simulate") < text.index("--model M") < text.index("--recompute ")


def test_a_run_that_exists_has_no_defaults_of_a_launch(command: Command) -> None:
    assert "[default: ddp]" in " ".join(command("launch", "--help").out.split())
    assert "[default: ddp]" not in " ".join(command("resume", "--help").out.split())


def test_the_last_minus_three_lines_of_a_log_are_no_traceback(command: Command) -> None:
    assert command("logs", "--tail", "-3").err == "error: --tail must be at least 0, not -3.\n"


def test_every_number_is_refused_in_the_same_words() -> None:
    seen = 0
    for name, command in all_commands():
        with command.make_context(name, [], resilient_parsing=True) as context:
            rows = [(param, param.get_help_record(context)) for param in command.params]
        needed = [
            "1" if param.param_type_name == "argument" else f"{param.opts[-1]}=1"
            for param, _ in rows
            if param.param_type_name == "argument" or param.required
        ]
        for param, record in rows:
            if record and re.search("--.*<(int|float)>", record[0]):
                seen += 1
                with pytest.raises(UsageError, match=r"must be a .*number.* not '4x'"):
                    command.main([*needed, f"{param.opts[-1]}=4x"], name, standalone_mode=False)
    assert seen > 100


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("metrics --tail -3", "--tail must be at least 1, not -3."),
        ("metrics --tail 0", "--tail must be at least 1, not 0."),
        ("ui --port 70000", "--port can be at most 65,535, not 70,000."),
        ("set last lr=1 --timeout -1", "timeout must be at least 0, not -1."),
        ("look last --timeout nan", "timeout must be at least 0, not nan."),
        ("profile last --from x", "--from must be a whole number, not 'x'."),
        ("note last", "Missing argument 'TEXT'. Usage: workbench note [OPTIONS] RUN TEXT;"),
        ("launch gpt --gpus 2", "Here it is --nproc."),
        ("launch gpt -n 2", "Here it is --nproc."),
        ("memory --model gpt2 --nproc 2", "Here it is --gpus."),
        ("memory --batch-size 4", "No such option: --batch-size. Here it is --micro-batch. Usage"),
        ("memory --bs=4", "Here it is --micro-batch."),
        ("cost --gradient-accumulation-steps 8", "Here it is --accumulate."),
        ("cost --max_length 4096", "Here it is --seq-len."),
        ("advise --mixed_precision bf16", "Here it is --precision."),
        ("memory --zero-stage 3", "Here it is --strategy zero3."),
        ("memory --tensor-parallel-size=4", "Here it is --strategy tp4."),
        ("memory --tensor-parallel-size", "Here it is --strategy tpN."),
        ("memory --bf16", "Here it is --precision bf16."),
        ("plan --batch-size 512", "Here it is --global-batch."),
        ("plan --num-gpus 8", "Here it is --gpus."),
        ("plan --provider aws", "Here it is --providers."),
        ("verify gpt --nproc_per_node 2", "Here it is --ranks."),
        ("launch gpt --num_machines 2", "Here it is --nodes."),
        ("launch gpt --gradient-checkpointing", "Here it is --recompute full."),
        ("launch gpt --batch-size 2", "The recipe gpt calls it --micro-batch. Options of the"),
        ("launch gpt --dry-run -- --batch-size 2", "--batch-size is --micro-batch here."),
        ("launch nosuch", "Recipes: gpt, lora,"),
        ("show ''", "RUN is empty. Usage: workbench show [OPTIONS] [RUN];"),
        ("compare last ''", "RUN is empty."),
        ("launch gpt --store ''", "--store is empty."),
        ("memory --config=", "--config is empty."),
        ("memory --like '' --gpu h100", "--like is empty."),
        ("sweep show ''", "SWEEP is empty."),
        ("measure ''", "SCRIPT is empty."),
        ("rehearse ''", "PLAN is empty."),
        ("runs --csv ''", "--csv is empty."),
        ("launch Fine-Tune", "No script or recipe 'Fine-Tune' in"),
        ("runs --nosuch", "No such option: --nosuch. Usage: workbench runs [OPTIONS];"),
        ("shw", "Did you mean 'show'? Usage: workbench [OPTIONS] COMMAND [ARGS]...;"),
        ("fork last --lr 3", "Options of the script itself come after --. Usage: workbench fork"),
    ],
)
def test_a_wrong_line_is_one_sentence_and_with_json_one_value(
    command: Command, line: str, sentence: str
) -> None:
    words = shlex.split(line)
    result = command(*words, "--json")
    assert result.code == 2
    assert sentence in json.loads(result.out)["error"]
    plain = command(*words)
    assert (plain.code, plain.out) == (2, "")
    assert plain.err.startswith("error: ")
    assert sentence in plain.err


def test_ctrl_c_is_told(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_commands.wb, "attach", interrupted)
    result = command("show", "last")
    assert (result.code, result.out, result.err) == (130, "", "Interrupted.\n")


def test_ctrl_c_while_a_run_stops_says_that_it_goes_on(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(**_: object) -> None:
        raise KeyboardInterrupt

    run = SimpleNamespace(id="gpt-2", status=SimpleNamespace(live=True), document={})
    run.directory, run.stop = Path("runs/gpt-2").absolute(), interrupted
    monkeypatch.setattr(run_commands.wb, "attach", lambda *_: run)
    result = command("stop", "gpt-2")
    assert result.code == 130
    assert result.err == "gpt-2 was asked to stop and is stopping: workbench show gpt-2\n"
    run.directory = Path("/my runs/gpt-2")
    assert command("stop", "gpt-2").err.endswith("show gpt-2 --store '/my runs'\n")


def test_a_plan_that_a_trainer_lacks_is_no_end(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = wb.Job.of("llama-3-8b", gpu="h100", gpus=8, strategy="zero1")
    monkeypatch.setattr(trainer_export, "described", lambda *_: job)
    result = command("export", "plans.json", "--trainer", "torchtune")
    assert result.code == 2
    assert "torchtune cannot express zero stage 1" in result.err
    assert result.err.endswith("Or take another plan of plans.json: --rank 2\n")


def test_no_cell_is_cut_in_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table("trial", "run", box=None)
    table.add_row("0", "train-sweep-trial-000-of-many")
    monkeypatch.setattr(terminal.console, "_width", 20)
    terminal.console.print(table)
    text = capsys.readouterr().out
    assert "…" not in text
    assert "train-sweep-trial-000-of-many" in "".join(text.split()).replace("0train", "train")

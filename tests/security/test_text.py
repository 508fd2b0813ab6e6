"""S9, S10, S11: text of others is shown as text, on terminals, in notebooks, in files."""

from __future__ import annotations

import ast
import csv
import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner

import workbench as wb
from tests.security.payloads import MARKUP, TERMINAL
from tests.security.test_code_execution import ROOT, SOURCES, calls
from workbench.cli.entry import app
from workbench.cli.tables import runs_table, summary_table
from workbench.cli.terminal import errors
from workbench.compare import export
from workbench.observe.log_tails import log_lines
from workbench.store.files import write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.printable import printable

ACTS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
HIDDEN = re.compile(r"[\u200b\u200e\u200f\u2060\ufeff]")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("text", TERMINAL)
def test_printable_text_commands_no_terminal(text: str) -> None:
    shown = printable(text)
    assert not ACTS.search(shown)
    assert not HIDDEN.search(shown)
    kept = printable(text, colours=True)
    assert not ACTS.search(COLOURS.sub("", kept))
    assert printable(shown) == shown


def test_colours_stay_where_they_are_wanted_and_long_lines_are_cut() -> None:
    assert printable("\x1b[1;31mred\x1b[0m\x1b[2K", colours=True) == "\x1b[1;31mred\x1b[0m"
    assert printable("tab\there\nnext\n") == "tab\there\nnext\n"
    assert printable("x" * 1_000_000) == "x" * 999 + "…"
    assert printable("naïve 名前 👩‍👩‍👧") == "naïve 名前 👩‍👩‍👧"
    assert printable("\x1b]0;no end " + "x" * 1_000_000) == ""


@pytest.mark.parametrize("text", TERMINAL)
def test_a_log_tail_commands_no_terminal(text: str) -> None:
    (line,) = log_lines(f"before {text} after") or [""]
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", line)


@pytest.mark.parametrize("text", [*TERMINAL, *MARKUP])
def test_the_command_line_shows_names_and_messages_as_text(text: str, tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "theirs")
    paths.directory.mkdir()
    paths.make_folders()
    words = {"name": text, "script": text, "arguments": [text], "strategy_name": text}
    paths.run.write_text(json.dumps({**words, "created_at": 1.0, "device": text}))
    paths.exit.write_text(json.dumps({"outcome": text, "message": text}))
    run = wb.Run(paths)
    for table in (runs_table(wb.runs(tmp_path)), summary_table(run.summary())):
        console = Console(file=io.StringIO(), force_terminal=True, width=400, highlight=False)
        console.print(table)
        printed = console.file.getvalue()
        assert not ACTS.search(COLOURS.sub("", printed))
        assert "\x1b]8" not in printed  # a link of the terminal
    assert run.outcome is None or run.outcome.isalpha()
    assert printable(text) in printed


@pytest.mark.parametrize("text", TERMINAL)
def test_what_a_record_leaves_open_commands_no_terminal(text: str, tmp_path: Path) -> None:
    """Names of its entries, and values that the schema does not narrow, as `compare` shows them."""
    shared = {"created_at": 1.0, "processes": 1, "strategy_name": "ddp"}
    open_values = {
        "cluster": {"name": f"host {text}", "cpu_name": text},
        "strategy": {"name": "ddp", f"option {text}": 1, "engine": text},
        "environment": {f"A{text}": "1"},
        "provenance": {"packages": {f"torch{text}": "2"}, "files": {f"t{text}.py": "0"}},
        "workload": {"deep": [[{f"key {text}": [text, 1.0]}]]},
    }
    for run, values in {"mine": {}, "theirs": open_values}.items():
        (tmp_path / run).mkdir()
        (tmp_path / run / "run.json").write_text(json.dumps({**shared, "run": run, **values}))
    document = wb.Run(RunPaths(tmp_path / "theirs")).document
    kept = json.dumps({name: document[name] for name in open_values}, ensure_ascii=False)
    assert not ACTS.search(kept)
    assert not HIDDEN.search(kept)
    assert document["cluster"]["cpu_name"] == printable(text)
    printed = CliRunner().invoke(app, ["compare", "mine", "theirs", "--store", str(tmp_path)])
    assert printed.exit_code == 0, printed.output
    assert "host" in printed.output
    assert not ACTS.search(COLOURS.sub("", printed.output))


def test_values_nested_beyond_any_reader_are_left_out(tmp_path: Path) -> None:
    deep = "[" * 400 + "]" * 400
    (tmp_path / "run.json").write_text(f'{{"created_at": 1.0, "workload": {{"x": {deep}}}}}')
    assert json.dumps(wb.Run(RunPaths(tmp_path)).document).count("[") < 200


@pytest.mark.parametrize("text", TERMINAL[::4])  # each reads the catalogs
def test_a_configuration_of_others_commands_no_terminal(text: str, tmp_path: Path) -> None:
    """Its unknown keys are named in notes, and its wrong values in errors."""
    path = tmp_path / "deepspeed.json"
    path.write_text(
        json.dumps(
            {
                "train_micro_batch_size_per_gpu": 1,
                "zero_optimization": {"stage": 3},
                f"zero_optim{text}": 3,
            }
        )
    )
    line = ["memory", "--config", str(path), "--model", "llama-3-8b", "--gpu", "h100"]
    printed = CliRunner().invoke(app, line)
    assert printed.exit_code == 0, printed.output
    assert "left out: zero_optim" in " ".join(printed.output.split())
    assert not ACTS.search(COLOURS.sub("", printed.output))


@pytest.mark.parametrize("text", TERMINAL)
def test_an_error_commands_no_terminal(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    errors.print(f"error: [b]{text}[/]", markup=False, soft_wrap=True)
    errors.print(Text(text, style="bold red"))
    printed = capsys.readouterr().err
    assert printed.startswith("error: [b]")
    assert not ACTS.search(COLOURS.sub("", printed))


def test_every_console_of_the_command_line_prints_texts_as_text() -> None:
    made = {
        path.name
        for path in SOURCES
        if path.parent.name == "cli"
        for called, _ in calls(path)
        if called == "Console"
    }
    assert made == set()


@pytest.mark.slow
def test_no_face_hands_foreign_text_to_a_display_that_reads_files() -> None:
    """``IPython.display.HTML(data=text)`` opens the file when `text` is the path of one."""
    for path in SOURCES:
        module = ast.parse(path.read_text())
        constants = {
            target.id
            for node in module.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name) and not isinstance(node.value, ast.Call)
        }
        for called, node in calls(path):
            if called.rpartition(".")[2] not in {"HTML", "Markdown", "SVG", "Javascript", "Latex"}:
                continue
            given = [*node.args, *(one.value for one in node.keywords if one.arg != "layout")]
            for value in given:
                fixed = isinstance(value, ast.Constant) or (
                    isinstance(value, ast.Name) and value.id in constants
                )
                assert fixed, f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"


@pytest.mark.slow  # it reads every source
def test_nothing_is_exported_as_a_sheet_that_calculates(tmp_path: Path) -> None:
    """One place writes CSV, and what begins with = + - @ or a control is text there."""
    ways = {"csv.writer", "csv.DictWriter", "to_csv", "to_excel"}
    writers = [
        path for path in SOURCES for called, _ in calls(path) if {called, called[-6:]} & ways
    ]
    assert [path.name for path in writers] == ["export.py"]
    texts = ["=1+1", "+1", "-1", "@A1", "\t=1", "\r=1", "-", "plain"]
    target = tmp_path / "runs.csv"
    rows = [{"name": text, "loss": -1.5} for text in texts]
    export.write(target, rows, {"name": str, "loss": float})
    with target.open(newline="") as file:
        cells = [(row["name"], row["loss"]) for row in csv.DictReader(file)]
    assert cells == [(f"'{text}" if text != "plain" else text, "-1.5") for text in texts]


def test_surrogates_and_controls_do_not_leave_the_store(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "theirs")
    paths.directory.mkdir()
    paths.run.write_bytes(b'{"name":"a\\ud800b\\u0000c","created_at":1,"more":"\\udfff"}')
    (row,) = wb.runs(tmp_path)
    assert row["name"] == "a?bc"
    json.dumps(wb.Run(paths).document, ensure_ascii=False).encode()
    write_json_atomic(paths.state, wb.Run(paths).document)

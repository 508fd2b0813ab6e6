"""What an agent is told about arguments that are wrong: a sentence, as on the command line."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import workbench as wb

pytest.importorskip("mcp", reason="the extra agents is not installed")

from mcp.server.mcpserver.exceptions import ToolError

from workbench.cli import mcp_tools
from workbench.cli.mcp_answers import MOST_CHARACTERS, last_rows
from workbench.cli.mcp_limits import AgentLimits
from workbench.cli.mcp_tools import server
from workbench.errors import UsageError


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("metrics", {"tail": "many"}, "tail of metrics must be a whole number, not 'many'."),
        ("logs", {"rank": []}, "rank of logs must be a whole number, not []."),
        ("memory", {}, "memory needs options: a list of words, such as"),
        ("memory", {"options": 3}, "options of memory must be a list of words, such as"),
        ("show", {"runn": "last"}, "Unknown argument of show 'runn'. Did you mean run?"),
        ("doctor", {"run": "last"}, "doctor takes no arguments. 'run' was given."),
        ("shwo", {}, "Unknown tool 'shwo'. Did you mean show"),
        ("show", {"run": "/etc"}, "run is '/etc': give ids of this store's runs."),
        ("show", {"run": "nobody"}, "No runs in "),
        ("metrics", {"tail": 0}, "--tail must be at least 1, not 0."),
        ("logs", {"run": "--raw"}, "run is '--raw': it cannot be an option."),
        ("compare", {"runs": ["a", "--csv", "b"]}, "runs is ['a', '--csv', 'b']: it cannot be"),
        ("dry_run", {"script": "--queue"}, "script is '--queue': it cannot be an option."),
        ("dry_run", {"script": "gpt", "options": ["--wrap"]}, "--wrap needs a value. See the"),
        ("dry_run", {"script": "gpt", "options": ["--cpu", "--mirror"]}, "--mirror needs a value"),
        ("memory", {"options": ["--help"]}, "--help cannot be given here. Use the tool help"),
        ("memory", {"options": ["-h"]}, "--help cannot be given here. Use the tool help"),
    ],
)
def test_a_wrong_argument_is_one_sentence(
    tool: str, arguments: dict[str, Any], said: str, tmp_path: Path
) -> None:
    limits = AgentLimits(allow_launch=False, max_usd=None, max_hours=None)
    made = server(limits, str(tmp_path / "runs"))
    with pytest.raises(ToolError) as told:
        asyncio.run(made.call_tool(tool, arguments))
    assert str(told.value).startswith(said)
    assert "\n" not in str(told.value)
    assert "pydantic" not in str(told.value)


@pytest.mark.parametrize("tool", ["launch", "resume"])
def test_a_limit_is_never_taken_for_the_value_of_an_option(tool: str, tmp_path: Path) -> None:
    limits = AgentLimits(allow_launch=True, max_usd=None, max_hours=1.0)
    made = server(limits, str(tmp_path / "runs"))
    given = {"script": "gpt"} if tool == "launch" else {"run": "last"}
    with pytest.raises(ToolError, match=r"^--mirror needs a value"):
        asyncio.run(made.call_tool(tool, {**given, "options": ["--cpu", "--mirror"]}))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("tool", ["dry_run", "launch"])
def test_the_help_of_a_script_starts_nothing(tool: str, tmp_path: Path) -> None:
    limits = AgentLimits(allow_launch=True, max_usd=None, max_hours=1.0)
    made = server(limits, str(tmp_path / "runs"))
    told = asyncio.run(made.call_tool(tool, {"script": "gpt", "arguments": ["--help"]}))
    assert "--steps" in str(told)
    assert not (tmp_path / "runs").exists()


def test_steps_and_counts_are_told_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"step": 1234571 + n, "rank": None, "time": 1.0, "loss": 2.3456789, "tokens": 5056804864.0}
        for n in range(2)
    ]
    monkeypatch.setattr(mcp_tools, "ask", lambda *_: rows)
    told = json.loads(mcp_tools.Tools(AgentLimits(), str(tmp_path)).metrics("last", 2))
    assert told["rows"] == ["1234571 - 2.34568 5056804864", "1234572 - 2.34568 5056804864"]


def test_the_last_rows_are_told_under_all_their_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["step", *(f"eval/of part {n}" for n in range(20))]
    rows = [{name: float(step) for name in names} for step in range(10_000, 10_050)]
    monkeypatch.setattr(mcp_tools, "ask", lambda *_: rows)
    answer = mcp_tools.Tools(AgentLimits(), str(tmp_path)).metrics("last", 50)
    told = json.loads(answer)
    assert told["columns"] == names
    assert {len(row.split()) for row in told["rows"]} == {len(names)}
    assert told["rows"][-1].startswith("10049 ")
    assert told["rows_before"] + len(told["rows"]) == 50
    assert len(answer) <= MOST_CHARACTERS


def test_columns_that_fit_in_no_answer_are_refused() -> None:
    with pytest.raises(UsageError, match=r"400 columns are too long for one answer. Name fewer"):
        last_rows([f"eval/of part {n}" for n in range(400)], ["1"])


def test_what_a_run_has_spent_is_not_given_again_at_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = {"elapsed_seconds": 0.0, "usd_so_far": 0.0}
    document = {"usd_per_hour": 10.0, "recovery": {"max_usd": None}}
    run = SimpleNamespace(
        id="r", document=document, directory=tmp_path, state="running", view=lambda: view
    )
    asked: list[list[str]] = []

    def resumed(_: str, words: list[str]) -> dict[str, Any]:
        asked.append(words)
        view["elapsed_seconds"] += 1800  # stopped halfway
        view["usd_so_far"] += 5.0
        return {"run": "r", "nodes": 1}

    monkeypatch.setattr(mcp_tools, "ask", resumed)
    monkeypatch.setattr(mcp_tools.wb, "attach", lambda *_: run)
    monkeypatch.setattr(mcp_tools.Tools, "_record", lambda *_: None)
    tools = mcp_tools.Tools(AgentLimits(allow_launch=True, max_usd=10), str(tmp_path))
    context: Any = None
    for left in ("1", "0.5"):
        tools.resume(context, "r")
        assert asked[-1][3:7] == ["--max-hours", left, "--max-usd", "10"]
    with pytest.raises(wb.UsageError, match="in all its attempts"):
        tools.resume(context, "r")
    assert len(asked) == 2

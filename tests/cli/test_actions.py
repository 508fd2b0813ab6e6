"""What was done with a run, and for whom, as `show` tells it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Command
from tests.compare.made_runs import make_run
from workbench.store.actions import read_actions, record_action


def test_show_tells_the_actions(store: Path, command: Command) -> None:
    paths = make_run(store, "first")
    assert read_actions(paths) == []
    for number in range(60):
        words = ["--lr", f"{number}e-5", "--token", "hf_abcdefghijklmnopqrstuvwxyzabcdefgh"]
        record_action(paths, by="mcp: agent", action="resume", arguments=words, limits="")
    with paths.actions.open("a") as file:
        file.write('{"torn')
    shown = json.loads(command("show", "first", "--store", str(store), "--json").out)["actions"]
    assert [one["arguments"][1] for one in shown] == [f"{n}e-5" for n in range(10, 60)]
    text = command("show", "first", "--store", str(store), columns=200).out
    assert "mcp: agent: resume --lr 59e-5 --token [redacted]" in text
    assert "--lr 49e-5" not in text

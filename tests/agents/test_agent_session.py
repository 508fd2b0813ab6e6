"""A scripted agent, over stdio as any other: from a plan to a resumed run, in few calls and words."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

import workbench as wb
from tests.conftest import TINY_GPT

pytest.importorskip("mcp", reason="the extra agents is not installed")

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

MOST_CALLS = 12
MOST_TOKENS = 15_000
TINY = [*TINY_GPT, "--steps", "5000"]


class Agent:
    """Calls tools and counts what they cost."""

    def __init__(self, client: Client) -> None:
        self.client, self.calls, self.characters = client, 0, 0

    async def ask(self, tool: str, **arguments: object) -> str:
        self.calls += 1
        answer = await self.client.call_tool(tool, arguments)
        text = "".join(part.text for part in answer.content)
        self.characters += len(json.dumps(arguments)) + len(text)
        assert not answer.is_error, text
        return text


@pytest.mark.slow
def test_plan_launch_diagnose_resume_in_few_calls_and_tokens(store: Path) -> None:
    words = ["-m", "workbench.cli", "mcp", "--allow-launch", "--max-hours", "1"]
    server = StdioServerParameters(
        command=sys.executable, args=[*words, "--store", str(store)], env=dict(os.environ)
    )
    agent = asyncio.run(session(server, store))
    assert agent.calls <= MOST_CALLS
    assert agent.characters / 4 <= MOST_TOKENS


async def session(server: StdioServerParameters, store: Path) -> Agent:
    async with Client(stdio_client(server)) as client:
        agent = Agent(client)
        tools = (await client.list_tools()).tools
        agent.characters += sum(len(one.model_dump_json(exclude_none=True)) for one in tools)
        planned = json.loads(
            await agent.ask("plan", options=["--model", "llama-3-8b", "--tokens", "1B"])
        )
        assert planned["plans"][0]["usd"] > 0
        what = {"script": "gpt", "options": ["--cpu", "--nproc", "2", "--warm"], "arguments": TINY}
        assert "predicted" in json.loads(await agent.ask("dry_run", **what))
        begun = json.loads(await agent.ask("launch", **what))
        run = wb.attach(begun["run"], store)
        run.wait(120, steps=3)
        assert json.loads(await agent.ask("show", run=run.id))["steps"] >= 3
        assert json.loads(await agent.ask("metrics", run=run.id, tail=3))["columns"]
        stopped = json.loads(await agent.ask("stop", run=run.id))
        assert stopped["outcome"] == "stopped"
        # Which findings a healthy run has while the host is busy, tests/diagnose asks of recordings.
        for one in json.loads(await agent.ask("diagnose", run=run.id))["findings"]:
            assert one["id"].startswith(one["kind"])
            assert one["evidence"]
        again = json.loads(await agent.ask("resume", run=run.id, max_hours=0.5))
        assert again["run"] == run.id
        assert again["stopped_after_hours"] == 0.5
        run.wait(120, steps=json.loads(await agent.ask("show", run=run.id))["steps"] + 1)
        await agent.ask("stop", run=run.id)
        lines = (run.directory / "actions.jsonl").read_text().splitlines()
        did = [json.loads(line) for line in lines]
        assert [one["action"] for one in did] == ["launch", "stop", "resume", "stop"]
        assert all(one["by"].startswith("mcp: ") for one in did)
        print(agent.calls, agent.characters)
        return agent

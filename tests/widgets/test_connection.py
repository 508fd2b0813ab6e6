"""What pages say of their server: whether it answers, what it refuses and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.widgets.small_dom import on_page

_TOKEN = "Open the address with the token that workbench ui printed."


@pytest.mark.parametrize(
    ("server", "answer", "said"),
    [
        ("workbench ui", {"status": 403, "text": f'{{"error": "{_TOKEN}"}}'}, _TOKEN),
        ("Jupyter", {"status": 403, "text": "<html>Forbidden"}, "Log in again."),
        ("Jupyter", {"status": 200, "text": "<html>", "url": "/login?next=x"}, "Log in again."),
        ("Jupyter", {"status": 500, "text": "<html>"}, "Jupyter answers with HTTP 500; retrying."),
        ("workbench ui", None, "workbench ui does not respond; retrying."),
    ],
)
def test_a_refusal_is_no_lost_connection(
    tmp_path: Path, server: str, answer: dict[str, Any] | None, said: str
) -> None:
    lost = on_page(
        tmp_path,
        """
        const { RunSource } = await import("./source.js");
        let now = answer;
        globalThis.fetch = async () => {
          if (!now) throw new TypeError("Failed to fetch");
          const { status, text, url = "/files/x/view.json" } = now;
          return Object.defineProperty(new Response(text, { status }), "url", { value: url });
        };
        const config = { run: "x", run_path: "x", transport: "http", refresh_ms: 1e6 };
        const lost = [];
        const source = new RunSource({ config, model: null, url: (path) => path, server }, () => {}, (text) => lost.push(text));
        source.transport = "http";
        for (let poll = 0; poll < 3; poll += 1) await source.poll();
        now = { status: 200, text: '{"phase": "running"}' };
        await source.poll();
        source.close();
        tell(lost);""",
        server=server,
        answer=answer,
    )
    why, again = lost
    assert said in why
    assert again is None


def test_why_a_stop_failed_stays_while_the_table_is_read_again(tmp_path: Path) -> None:
    """The next reading, which went well, wiped it after 17 ms."""
    told = on_page(
        tmp_path,
        """
        const { StoreLink } = await import("./site_links.js");
        globalThis.setTimeout = () => 0;
        const answers = { "/api/runs": { rows: [] } };
        globalThis.fetch = async (path) => {
          const found = answers[path.replace("undefined", "")];
          if (!found) throw new TypeError("Failed to fetch");
          return new Response(JSON.stringify(found), { status: found.error ? 403 : 200 });
        };
        const said = [];
        const link = new StoreLink(() => {}, (text) => said.push(text));
        const sent = async (run, type) => {
          link.send({ run, type });
          for (let turn = 0; turn < 30; turn += 1) await null;
          await new Promise((done) => setImmediate(done));
        };
        Object.assign(answers, {
          "/api/runs/r1/act": { error: "this run belongs to another user" },
          "/api/runs/r1/ask": { error: "not read" },
        });
        document.cookie = "";
        await sent("r1", "stop");
        const read = async () => (await link.read(), said.at(-1));
        const seen = [await read(), await read()];
        await sent("r1", "series"); // asked for again and again
        await sent("r1", "series");
        seen.push(await read());
        const rows = answers["/api/runs"];
        delete answers["/api/runs"];
        seen.push(await read());
        answers["/api/runs"] = rows;
        answers["/api/runs/r1/ask"] = [];
        await sent("r1", "series");
        answers["/api/runs/r2/act"] = [];
        await sent("r2", "stop");
        seen.push(await read());
        tell(seen);""",
    )
    stopped = "r1: this run belongs to another user"
    assert told[:2] == [stopped, stopped]
    assert told[2] == f"{stopped} r1: not read"
    assert told[3].endswith(told[2])
    assert "does not respond" in told[3]
    assert told[4] == ""


def test_a_request_whose_answer_is_lost_can_be_made_again(tmp_path: Path) -> None:
    told = on_page(
        tmp_path,
        """
        const { Steer } = await import("./steer.js");
        const limits = new Map();
        globalThis.setTimeout = (call) => (limits.set(limits.size + 1, call), limits.size);
        globalThis.clearTimeout = (which) => limits.delete(which);
        const steer = new Steer(() => {});
        steer.show(true);
        const look = () => [steer.note.textContent, steer.buttons.some((one) => one.disabled)];
        steer.send({ action: "checkpoint" });
        const asking = look();
        [...limits.values()].forEach((end) => end());
        const lost = look();
        steer.send({ action: "checkpoint" });
        steer.say({ text: "Saved.", bad: false });
        tell({ asking, lost, answered: look(), limits: limits.size });""",
    )
    assert told["asking"] == ["Asking the ranks …", True]
    assert told["lost"][0].startswith("No answer came.")
    assert not told["lost"][1]
    assert told["answered"] == ["Saved.", False]
    assert told["limits"] == 0

"""The logs of a run by the page's own modules: levels, colours, progress bars, parts of huge files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.widgets.test_page_state import run

TEXT = (
    "plain\n"
    "\x1b[31mred\x1b[0m and \x1b[1;32mgreen\x1b[0m\n"
    "  5%|5    | 1/20 [00:01]\r 50%|50   | 10/20 [00:02]\n"
    "100%|100  | 20/20 [00:03]\n"
    "UserWarning: careful\n"
    "Traceback (most recent call last):\n"
    '  File "train.py", line 3, in <module>\n'
    "ValueError: no such label\n"
    "after it\n"
)


def lines(folder: Path, text: str, **wanted: str) -> list[dict[str, Any]]:
    asked = {"level": "", "query": "", **wanted}
    return run(
        folder,
        f"""const {{ logLines, filtered }} = await import("./log_lines.js");
        console.log(JSON.stringify(filtered(logLines({json.dumps(text)}), {json.dumps(asked)})));""",
    )


def test_colours_levels_and_progress_bars(tmp_path: Path) -> None:
    found = lines(tmp_path, TEXT)
    assert [one["text"] for one in found[:3]] == [
        "plain",
        "red and green",
        "100%|100  | 20/20 [00:03]",
    ]
    styles = [(piece["text"], piece["style"]) for piece in found[1]["pieces"]]
    assert styles == [("red", "wb-c-red"), (" and ", ""), ("green", "wb-b wb-c-green")]
    assert found[2]["folded"] == 2
    levels = [one["level"] for one in found]
    assert levels == ["plain"] * 3 + ["warning", "error", "error", "error", "plain"]


def test_lines_are_found_by_level_and_text(tmp_path: Path) -> None:
    assert [one["text"] for one in lines(tmp_path, TEXT, level="error")][-1] == (
        "ValueError: no such label"
    )
    assert len(lines(tmp_path, TEXT, level="warning")) == 4
    assert [one["text"] for one in lines(tmp_path, TEXT, query="CAREFUL")] == [
        "UserWarning: careful"
    ]


def test_a_log_of_a_gigabyte_is_read_in_parts(tmp_path: Path) -> None:
    """Followed at its end, scrolled both ways, searched backwards; never more than a part kept."""
    told = run(
        tmp_path,
        """const { LogWindow } = await import("./log_window.js");
        const LINE = 50, SIZE = { now: 1e9 };
        let read = 0, largest = 0;
        const text = (at) => {
          const number = Math.floor(at / LINE);
          const word = number === 17_000_000 ? "NEEDLE" : "step";
          return `${word} ${String(number).padStart(12, "0")}`.padEnd(LINE - 1, ".") + "\\n";
        };
        const part = async (name, start, end) => {
          const first = start < 0 ? SIZE.now + start : start;
          const last = Math.min(SIZE.now, end ?? SIZE.now);
          if (first >= SIZE.now) throw new Error("416");
          let found = "";
          for (let at = first - (first % LINE); at < last; at += LINE) found += text(at);
          found = found.slice(first % LINE, (first % LINE) + last - first);
          read += found.length;
          largest = Math.max(largest, found.length);
          return { bytes: new TextEncoder().encode(found), start: first, size: SIZE.now };
        };
        const log = new LogWindow("rank-0.log", part);
        await log.follow();
        const lastLine = log.text().trimEnd().split("\\n").at(-1);
        const nothing = await log.follow();
        SIZE.now += 100;
        const grown = await log.follow();
        const afterGrowth = log.text().trimEnd().split("\\n").at(-1);
        for (let turn = 0; turn < 12; turn += 1) await log.older();
        const scrolled = [log.start, log.end, log.bytes.length];
        const beforeSearch = read;
        const found = await log.find("needle");
        const there = log.text().includes("NEEDLE");
        const whereabouts = log.start;
        await log.newer();
        console.log(JSON.stringify({ lastLine, nothing, grown, afterGrowth, scrolled, found, there, whereabouts,
          kept: log.bytes.length, largest, searched: read - beforeSearch }));""",
    )
    assert told["lastLine"].startswith("step 000019999999")
    assert (told["nothing"], told["grown"]) == (False, True)
    assert told["afterGrowth"].startswith("step 000020000001")
    assert told["scrolled"][2] <= 256_000
    assert told["scrolled"][0] < 1e9 - 700_000
    assert (told["found"], told["there"]) == (True, True)
    assert 849_000_000 < told["whereabouts"] < 850_000_000
    assert told["largest"] <= 512_000
    assert told["kept"] <= 256_000


_LOGS = """
const { Logs } = await import("./logs.js");
const logs = Object.assign(Object.create(Logs.prototype), {
  busy: false, drawnAt: 0, select: { value: "rank-0.log" }, chosen: true, following: true,
  view: { phase: "ended", ranks: [] }, shown: "", where: {},
});
logs.tailInView = () => null;
logs.take = (_, name) => (logs.shown = name);
"""


def test_the_log_that_was_chosen_meanwhile_is_shown(tmp_path: Path) -> None:
    told = run(
        tmp_path,
        _LOGS
        + """
        const asked = [];
        logs.source = { part: (name) => new Promise((done) => asked.push({ name, done })) };
        const first = logs.refresh(true);
        logs.select.value = "rank-1.log";
        await logs.refresh(true); // it is busy
        asked[0].done(null);
        await first;
        asked[1].done(null);
        await new Promise((done) => setTimeout(done, 5));
        console.log(JSON.stringify([asked.map(({ name }) => name), logs.shown]));""",
    )
    assert told == [["logs/rank-0.log", "logs/rank-1.log"], "rank-1.log"]


def test_a_part_of_a_log_is_no_whole_file(tmp_path: Path) -> None:
    told = run(
        tmp_path,
        _LOGS
        + """
        const config = { run: "gpt" };
        const size = { value: 200_000_000 };
        logs.source = {
          context: { config },
          part: async (_, at) => ({ bytes: new Uint8Array(Math.min(1_000_000, size.value - at)), size: size.value }),
        };
        const part = (await logs.gathered("rank-0.log")).size;
        const said = logs.where.textContent;
        logs.where = {};
        size.value = 3_000_000;
        await logs.gathered("rank-0.log");
        console.log(JSON.stringify([part, said, logs.where.textContent ?? ""]));""",
    )
    assert told[0] < 200_000_000
    assert told[1].startswith("The file has the first ")
    assert told[1].endswith("gpt/logs/rank-0.log")
    assert told[2] == ""

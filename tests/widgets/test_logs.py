"""The logs of a run by the page's own modules: levels, colours, progress bars, parts of huge files."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.widgets.small_dom import on_page
from tests.widgets.test_page_state import run
from workbench.pages.file_parts import file_part

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
        await log.follow();
        SIZE.now += 300e6; // while nobody looked
        await log.follow();
        const seenAgain = log.text().trimEnd().split("\\n").at(-1);
        console.log(JSON.stringify({ lastLine, nothing, grown, afterGrowth, scrolled, found, there, whereabouts,
          kept: log.bytes.length, seenAgain, largest, searched: read - beforeSearch }));""",
    )
    assert told["lastLine"].startswith("step 000019999999")
    assert (told["nothing"], told["grown"]) == (False, True)
    assert told["afterGrowth"].startswith("step 000020000001")
    assert told["scrolled"][2] <= 256_000
    assert told["scrolled"][0] < 1e9 - 700_000
    assert (told["found"], told["there"]) == ("found", True)
    assert 849_000_000 < told["whereabouts"] < 850_000_000
    assert told["largest"] <= 512_000
    assert told["kept"] <= 256_000
    assert told["seenAgain"].startswith("step 000026000001")


def test_a_search_that_ends_early_says_so_and_goes_on(tmp_path: Path) -> None:
    """256 MB before the end it gave up, said that the text was nowhere, and began again there."""
    told = on_page(
        tmp_path,
        """
        const { LogWindow } = await import("./log_window.js");
        const SIZE = 6e8, PLACE = SIZE - 3e8;
        let read = 0, broken = false;
        const part = async (name, start, end) => {
          if (broken) return null;
          const first = start < 0 ? SIZE + start : start;
          const bytes = new Uint8Array(Math.min(SIZE, end ?? SIZE) - first).fill(97);
          if (first <= PLACE && PLACE + 6 < first + bytes.length) bytes.set(new TextEncoder().encode("NEEDLE"), PLACE - first);
          read += bytes.length;
          return { bytes, start: first, size: SIZE };
        };
        const log = new LogWindow("rank-0.log", part);
        await log.follow();
        const presses = [];
        for (const text of ["needle", "needle", "elsewhere", "elsewhere", "elsewhere"]) {
          read = 0;
          presses.push([await log.find(text), Math.round(read / 1e6)]);
        }
        broken = true;
        presses.push([await log.find("anything"), 0]);
        tell(presses);""",
    )
    assert [found for found, _ in told] == [
        *("further", "found", "further", "nowhere", "nowhere", "unread"),
    ]
    assert [megabytes for _, megabytes in told] == [256, 44, 256, 44, 0, 0]


_LOGS = """
const { Logs } = await import("./logs.js");
const { LogWindow } = await import("./log_window.js");
const files = {}; // what each log holds; null: it cannot be read
const asked = [], held = [];
let hold = false;
const text = (one) => new TextEncoder().encode(one);
const part = async (path, start, end) => {
  const name = path.split("/").at(-1);
  asked.push(name);
  if (hold) await new Promise((done) => held.push(done));
  if (files[name] === null) return null;
  const all = typeof files[name] === "string" ? text(files[name]) : (files[name] ?? new Uint8Array());
  const first = Math.max(0, start < 0 ? all.length + start : start);
  return { bytes: all.slice(first, end ?? all.length), start: first, size: all.length };
};
const logs = new Logs({ transport: "http", part, context: { config: { run: "gpt" } }, url: (name) => `/files/${name}` });
const ranksOf = (...numbers) => numbers.map((rank) => ({ rank, log_tail: files[`rank-${rank}.log`] === "" ? [] : ["a line"] }));
const look = async (view) => {
  asked.length = 0;
  logs.drawnAt = 0;
  logs.draw(view);
  await settled();
};
const choose = async (name) => {
  logs.choice.select.value = name;
  logs.choice.select.emit("change");
  await settled();
};
const shown = () => logs.text.textContent;
"""


def test_the_log_shown_first_is_a_ranks_and_no_file_is_asked_for_too_early(tmp_path: Path) -> None:
    """A missing or empty file is a red line in the console at each look."""
    seen = on_page(
        tmp_path,
        _LOGS
        + """
        const found = {};
        for (const [phase, ranks] of [["starting", []], ["running", [0]], ["ended", []]]) {
          await look({ phase, ranks: ranksOf(...ranks) });
          found[phase] = [...asked];
        }
        tell(found);""",
    )
    assert seen == {"starting": [], "running": ["rank-0.log"], "ended": ["launcher.log"]}


def test_the_log_that_was_chosen_meanwhile_is_shown(tmp_path: Path) -> None:
    told = on_page(
        tmp_path,
        _LOGS
        + """
        Object.assign(files, { "rank-0.log": "zero\\n", "rank-1.log": "one\\n" });
        hold = true;
        await look({ phase: "running", ranks: ranksOf(0, 1) });
        await choose("rank-1.log"); // rank 0 is still being read
        hold = false;
        held[0]();
        await settled();
        tell([asked, shown()]);""",
    )
    assert told == [["rank-0.log", "rank-1.log"], "one"]


def test_nothing_of_one_rank_is_shown_as_another_ones(tmp_path: Path) -> None:
    """Start and Find older showed rank 0's lines under a rank that had printed nothing."""
    told = on_page(
        tmp_path,
        _LOGS
        + """
        files["rank-0.log"] = "needle of rank 0\\n".repeat(10_000);
        files["rank-1.log"] = "";
        await look({ phase: "running", ranks: ranksOf(0, 1) });
        const first = [shown().slice(0, 6), logs.where.textContent.includes(" of ")];
        await choose("rank-1.log");
        const seen = [[shown(), logs.where.textContent]];
        logs.search.value = "needle";
        await logs.jump(0);
        await logs.findOlder();
        Object.assign(logs.text, { scrollTop: 0, placed: 5 });
        await logs.scrolled();
        seen.push([shown(), logs.text.textContent.includes("rank 0")]);
        logs.search.value = "";
        await choose("rank-0.log");
        hold = true;
        const older = logs.more(logs.part(), "older");
        await choose("launcher.log"); // before the answer
        seen.push([shown(), logs.where.textContent]);
        held[0]();
        await settled();
        seen.push([shown(), logs.shown]);
        tell({ first, seen });""",
    )
    assert told["first"] == ["needle", True]
    assert told["seen"][0] == ["No output yet", ""]
    assert told["seen"][1] == ["No output yet", False]
    assert told["seen"][2] == told["seen"][3] == ["Reading …", ""]


def test_a_chosen_rank_stays_while_others_stand_out(tmp_path: Path) -> None:
    """Of 1,024 ranks a view has the 16 most extreme ones of that second."""
    told = on_page(
        tmp_path,
        _LOGS
        + """
        for (const rank of [0, 7, 16, 500]) files[`rank-${rank}.log`] = `log of rank ${rank}\\n`;
        const many = (from) => ({ phase: "running", ranks: ranksOf(...Array.from({ length: 16 }, (_, at) => from + at)), ranks_hidden: 1008 });
        const { choice } = logs;
        const seen = [];
        const see = () => seen.push([choice.name, shown()]);
        await look(many(1));
        see(); // not chosen by anyone
        await look(many(16));
        see();
        await choose("rank-16.log");
        await look(many(32));
        see();
        choice.number.value = "500";
        choice.number.emit("change");
        await settled();
        await look(many(1));
        see();
        choice.number.value = "1024"; // there is no such rank
        choice.number.emit("change");
        await look(many(1));
        see();
        const labels = choice.select.options.map((one) => one.textContent);
        const few = { ...many(0), ranks_hidden: undefined };
        await look(few);
        tell({ seen, all: labels.at(-3), asked: labels.includes("Rank 500"), number: choice.number.hidden });""",
    )
    assert told["seen"] == [
        *[["rank-0.log", "log of rank 0"]] * 2,
        ["rank-16.log", "log of rank 16"],
        *[["rank-500.log", "log of rank 500"]] * 2,
    ]
    assert told["all"] == "16 of 1,024 ranks"
    assert told["asked"]
    assert told["number"]


def test_merged_ranks_stay_while_others_stand_out(tmp_path: Path) -> None:
    told = on_page(
        tmp_path,
        _LOGS
        + """
        for (let rank = 0; rank < 100; rank += 1) files[`rank-${rank}.log`] = `log of rank ${rank}\\n`;
        const many = (from) => ({ phase: "running", ranks: ranksOf(...Array.from({ length: 16 }, (_, at) => from + at)), ranks_hidden: 84 });
        await look(many(1));
        await choose("all");
        await look(many(40));
        const lines = new Set(logs.lines.map((line) => line.from));
        await look({ phase: "starting", ranks: [] }); // resumed: no rank has told yet
        tell([lines.size, lines.has("rank 40"), logs.choice.name]);""",
    )
    assert told == [16, False, "all"]


def test_all_ranks_are_shown_in_whole_lines_with_their_levels(tmp_path: Path) -> None:
    """A look in the middle of a line cut words and characters in two and lost exceptions."""
    told = on_page(
        tmp_path,
        _LOGS
        + """
        const whole = text(log);
        const seen = [];
        files["rank-0.log"] = "fine\\n";
        files["rank-1.log"] = whole.slice(0, 1);
        await look({ phase: "running", ranks: ranksOf(0, 1) });
        await choose("all");
        let damaged = 0;
        for (let at = 2; at <= whole.length; at += 1) {
          files["rank-1.log"] = whole.slice(0, at);
          await look(logs.view);
          damaged += shown().includes("\ufffd");
        }
        const read = () => logs.lines.filter((line) => line.from === "rank 1").map((line) => `${line.level}: ${line.text}`);
        const bars = logs.lines.filter((line) => line.folded).map((line) => [line.text, line.folded]);
        const lines = read();
        files["rank-1.log"] = "again\\n"; // begun again by a resumed run
        await look(logs.view);
        tell({ lines, damaged, bars, again: read().at(-1), others: logs.lines.filter((line) => line.from === "rank 0").length });""",
        log="Verlust größer\n"
        "Traceback (most recent call last):\n"
        '  File "train.py", line 3\n'
        "RuntimeError: CUDA error\n"
        " 10%|1    | 1/3\r 40%|2  | 2/3\n"
        "100%|3    | 3/3\n"
        "last",
    )
    assert told["lines"] == [
        "plain: Verlust größer",
        "error: Traceback (most recent call last):",
        'error:   File "train.py", line 3',
        "error: RuntimeError: CUDA error",
        "plain: 100%|3    | 3/3",
        "plain: last",
    ]
    assert told["damaged"] == 0
    assert told["bars"] == [["100%|3    | 3/3", 2]]
    assert told["again"] == "plain: again"
    assert told["others"] == 1


def test_a_lost_answer_ends_a_reading_and_the_next_one_goes_on(tmp_path: Path) -> None:
    told = on_page(
        tmp_path,
        """
        const { RunSource } = await import("./source.js");
        const { Logs } = await import("./logs.js");
        const waits = [];
        const heard = new Set(), asked = [];
        const model = {
          on: (_, call) => heard.add(call), off: (_, call) => heard.delete(call),
          send: (message) => message.type === "part" && asked.push(message.id),
        };
        const context = { config: { run: "x", run_path: null, transport: "comm" }, model, url: () => null };
        const source = new RunSource(context, () => {}, () => {});
        await source.start();
        const logs = new Logs(source);
        const later = globalThis.setTimeout;
        globalThis.setTimeout = (call) => (waits.push(call), 0);
        const look = async () => {
          logs.drawnAt = 0;
          logs.draw({ phase: "running", ranks: [{ rank: 0 }] });
          await new Promise((done) => later(done, 5));
        };
        await look();
        await look(); // the first is still waited for
        const before = asked.length;
        waits.forEach((end) => end());
        await new Promise((done) => later(done, 5));
        const said = logs.text.textContent;
        await look();
        const bytes = new DataView(new TextEncoder().encode("hello").buffer);
        for (const call of heard) call({ type: "part", id: asked.at(-1), start: 0, size: 5 }, [bytes]);
        await new Promise((done) => later(done, 5));
        tell({ before, said, asked: asked.length, text: logs.text.textContent, heard: heard.size });""",
    )
    assert told == {
        "before": 1,
        "said": "This log cannot be read at the moment",
        "asked": 2,
        "text": "hello",
        "heard": 1,
    }


def test_a_log_that_cannot_be_read_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank-0.log").write_text("hello")
    asked = {"name": "logs/rank-0.log", "start": 0, "end": None}
    assert file_part(tmp_path, asked) is not None

    def stale(*_: object) -> bytes:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(os, "pread", stale)
    assert file_part(tmp_path, asked) is None


def test_what_is_saved_is_what_the_menu_says(tmp_path: Path) -> None:
    """With "All ranks" chosen the file was rank 0's."""
    told = on_page(
        tmp_path,
        _LOGS
        + """
        const saved = [];
        Node.prototype.click = function () { saved.push([this.attributes.download, this.attributes.href]); };
        let content = "";
        URL.createObjectURL = (blob) => (blob.text().then((found) => (content = found)), "blob:1");
        URL.revokeObjectURL = () => {};
        Object.assign(files, { "rank-0.log": "zero\\n", "rank-1.log": "one\\n" });
        await look({ phase: "running", ranks: ranksOf(0, 1) });
        await choose("rank-1.log");
        await logs.save();
        const titles = [logs.download.title];
        await choose("all");
        await logs.save();
        await settled();
        tell({ saved, content, titles: [...titles, logs.download.title] });
        process.exit(0);""",
    )
    assert told["saved"] == [["rank-1.log", "/files/logs/rank-1.log"], ["all-ranks.log", "blob:1"]]
    assert told["content"] == "rank 0: zero\nrank 1: one\n"
    assert told["titles"] == ["The whole log as a file", "These lines as a file"]


def test_a_part_of_a_log_is_no_whole_file(tmp_path: Path) -> None:
    told = on_page(
        tmp_path,
        """
        const { gathered } = await import("./log_file.js");
        const size = { value: 200_000_000 };
        const source = {
          context: { config: { run: "gpt" } },
          part: async (_, at) => ({ bytes: new Uint8Array(Math.min(1_000_000, size.value - at)), size: size.value }),
        };
        const said = [];
        const part = (await gathered(source, "rank-0.log", (text) => said.push(text))).size;
        size.value = 3_000_000;
        await gathered(source, "rank-0.log", (text) => said.push(text));
        tell([part, said]);""",
    )
    part, (said,) = told
    assert part < 200_000_000
    assert said.startswith("The file has the first ")
    assert said.endswith("gpt/logs/rank-0.log")

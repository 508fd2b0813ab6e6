"""The tools of ``workbench mcp``. Each one is a command; none computes anything of its own."""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError

import workbench as wb
from workbench.cli.commands import COMMANDS, load
from workbench.cli.mcp_answers import ask, check_values, last_lines, last_rows, run_command, short
from workbench.cli.mcp_arguments import PlainServer
from workbench.cli.mcp_limits import AgentLimits, PredictedRun, Spent, check_options
from workbench.cli.steering import steered
from workbench.errors import UnknownNameError, WorkbenchError
from workbench.launching.capture.steering import ACTIONS
from workbench.store.actions import record_action
from workbench.store.layout import RunPaths
from workbench.version import __version__

Words = list[str]
_DETAILS = ("sources", "per_stage", "trainer", "workload", "config_files", "environment", "shell")
_OF_PLANS = (
    *(*_DETAILS, "rejected", "range", "price_marks", "recompute_parts", "notes", "memory"),
    *("price_source", "price_date", "pareto", "sensitivity", "seq_len", "precision"),
)
_EXACT = 2**53  # a float has every whole number below it
_OF_RUNS = ("provenance", "command", "comparison", "dir", "script", "read_only")
_INSTRUCTIONS = (
    "Predict, plan, launch, watch and diagnose multi-GPU training. Usual order: plan or memory, "
    "dry_run, launch, show, diagnose, resume. Options are words as on the command line, such as "
    '["--strategy","fsdp"]; the tool help lists them. RUN is an id, a name or "last". {limits}'
)


def server(limits: AgentLimits, store: str) -> PlainServer:
    """The server with its tools; those that act refuse where it only reads."""
    plain_server = PlainServer(
        "training-workbench",
        instructions=_INSTRUCTIONS.format(limits=limits),
        version=__version__,
        log_level="ERROR",
    )
    tools = Tools(limits, store)
    reading = (tools.doctor, tools.help, tools.memory, tools.cost, tools.plan, tools.runs)
    reading += (tools.show, tools.metrics, tools.logs, tools.diagnose, tools.compare, tools.dry_run)
    for tool in (*reading, tools.launch, tools.stop, tools.steer, tools.resume):
        plain_server.add_tool(_with_tool_errors(tool), structured_output=False)
    return plain_server


def _with_tool_errors(tool: Callable[..., str]) -> Callable[..., str]:
    """The tool, whose refusals reach the agent as the sentences that they are."""

    @functools.wraps(tool)
    def called(*arguments: Any, **keywords: Any) -> str:
        try:
            return tool(*arguments, **keywords)
        except WorkbenchError as error:
            raise ToolError(str(error)) from error

    called.__dict__["__signature__"] = inspect.signature(tool, eval_str=True)
    return called


class Tools:
    """One method per tool; its docstring is what the agent reads."""

    def __init__(self, limits: AgentLimits, store: str) -> None:
        self._limits = limits
        self._store = ["--store", store]

    def doctor(self) -> str:
        """Check this host; each problem with its fix."""
        return short(ask("doctor", self._store))

    def help(self, command: str, contains: str = "") -> str:
        """Options of a command (plan, memory, cost, launch, resume …), one per line."""
        if command not in COMMANDS:
            raise UnknownNameError.near("command", command, COMMANDS)
        lines = [
            f"{'/'.join(parameter.opts)}: {getattr(parameter, 'help', None) or ''}"
            for parameter in load(command).params
        ]
        matching = [line for line in lines if contains in line]
        return last_lines("\n".join([COMMANDS[command].summary, *matching]))

    def memory(self, options: Words) -> str:
        """Peak memory of a rank, and what lowers it: ["--model","llama-3-8b","--gpu","h100"]."""
        return short(ask("memory", options), leave_out=_DETAILS)

    def cost(self, options: Words) -> str:
        """Hours and dollars of a run: ["--model","llama-3-8b","--tokens","1B","--gpu","h100"]."""
        return short(ask("cost", options), leave_out=(*_DETAILS, "step", "source"))

    def plan(self, options: Words) -> str:
        """Machines and layouts by dollars and hours: ["--model","llama-3-8b","--tokens","1B"]."""
        return short(ask("plan", options), leave_out=_OF_PLANS)

    def runs(self, where: str = "", limit: int = 10) -> str:
        """Runs, newest first; where: 'strategy=ddp outcome=failed loss<2 name~gpt'."""
        listed = ask("runs", [*self._store, "--where", where])
        return short({"runs": listed[: max(1, limit)], "total": len(listed)}, leave_out=_OF_RUNS)

    def show(self, run: str = "last") -> str:
        """State, outcome, steps, losses, speed, memory, cost and findings of a run."""
        return short(ask("show", [*self._store, run]), leave_out=(*_OF_RUNS, *_DETAILS, "parts"))

    def metrics(self, run: str = "last", tail: int = 10, keys: Words | None = None) -> str:
        """The last steps' loss, lr, grad norm and time; or of keys, by name or 'eval/*'."""
        words = [word for key in keys or () for word in ("--keys", key)]
        rows = ask("metrics", [*self._store, run, "--tail", str(min(tail, 50)), *words])
        names = [name for name in rows[0] if name != "time"] if rows else []
        table = [[row.get(name) for name in names] for row in rows]
        return last_rows(names, [_line(row) for row in table])

    def logs(self, run: str = "last", rank: int | None = None, tail: int = 20) -> str:
        """The last lines that the ranks printed, or one rank."""
        words = [] if rank is None else ["--rank", str(rank)]
        return last_lines(run_command("logs", [*self._store, run, *words, "--tail", str(tail)]))

    def diagnose(self, run: str = "last") -> str:
        """What is wrong with a run, worst first: evidence, cause, next step and its command."""
        findings = ask("diagnose", [*self._store, run])
        return short({"findings": findings, "total": len(findings)})

    def compare(self, runs: Words, by: str = "step") -> str:
        """2 to 10 runs beside each other: settings that differ, results, cost of a loss."""
        return short(ask("compare", [*self._store, *runs, "--by", by]), leave_out=("aligned",))

    def dry_run(
        self, script: str, options: Words | None = None, arguments: Words | None = None
    ) -> str:
        """What a launch would start, its prediction and warnings; nothing starts.

        script: a file, or a recipe such as gpt; options: of the launch; arguments: the script's.
        """
        dry = self._dry_run(script, options, arguments)
        if self._limits.allow_launch and _is_run(dry):
            try:
                dry["stopped_after_hours"] = self._limits.hours_for(_predicted(dry))
            except wb.UsageError as error:
                dry["launch_refused"] = str(error)
        return short(dry, leave_out=(*_DETAILS, "parts"))

    def launch(
        self,
        script: str,
        context: Context[Any, Any],
        options: Words | None = None,
        arguments: Words | None = None,
        max_hours: float | None = None,
    ) -> str:
        """Start a run within the server's limits; it is stopped with a checkpoint at max_hours.

        script, options and arguments as of dry_run.
        """
        self._limits.require_launch()
        dry = self._dry_run(script, options, arguments)
        if not _is_run(dry):
            return short(dry, leave_out=_DETAILS)
        hours = self._limits.hours_for(_predicted(dry), max_hours)
        words = [script, *(options or ()), "--max-hours", f"{hours:.12g}", *self._limits.words()]
        begun = ask("launch", [*self._store, *words, "--", *(arguments or ())])
        return self._acted("launch", begun, [*words, "--", *(arguments or ())], context, hours)

    def stop(self, context: Context[Any, Any], run: str = "last", *, now: bool = False) -> str:
        """Stop a run with a checkpoint (now: without); answers when no process is left."""
        self._limits.require_launch()
        handle = wb.attach(run, self._store[1])
        words = [handle.id, *(["--now"] if now else [])]
        self._record(handle, "stop", words, context)
        return short(ask("stop", [*self._store, *words]))

    def steer(
        self,
        action: str,
        context: Context[Any, Any],
        run: str = "last",
        words: Words | None = None,
    ) -> str:
        """Ask a live run: set ["lr=1e-4"], look ["MODULE"], checkpoint or evaluate, at one step."""
        self._limits.require_launch()
        if action not in ACTIONS:
            raise wb.UsageError(f"{action!r} cannot be asked: choose from {', '.join(ACTIONS)}.")
        handle = wb.attach(run, self._store[1])
        return short(steered(action, handle, list(words or ()), by=_client(context)).document())

    def resume(
        self,
        context: Context[Any, Any],
        run: str = "last",
        options: Words | None = None,
        arguments: Words | None = None,
        max_hours: float | None = None,
    ) -> str:
        """Resume from the newest checkpoint, also with another strategy, within what is left."""
        self._check("resume", options)
        handle = wb.attach(run, self._store[1])
        price = handle.document.get("usd_per_hour")
        hours = self._limits.hours_for(
            PredictedRun(hours=None, usd=None, usd_per_hour=price),
            max_hours,
            Spent.of(handle.view()),
        )
        own_usd = (handle.document.get("recovery") or {}).get("max_usd")
        words = [handle.id, *(options or ()), "--max-hours", f"{hours:.12g}"]
        words += self._limits.words(own_usd)
        begun = ask("resume", [*self._store, *words, "--", *(arguments or ())])
        return self._acted("resume", begun, [*words, "--", *(arguments or ())], context, hours)

    def _check(self, command: str, options: Words | None) -> None:
        check_options(options or (), dollars=self._limits.max_usd is not None)
        check_values(command, options or ())

    def _dry_run(self, script: str, options: Words | None, arguments: Words | None) -> Any:
        self._check("launch", options)
        words = [script, *(options or ()), "--dry-run", "--", *(arguments or ())]
        return ask("launch", [*self._store, *words])

    def _acted(
        self, action: str, begun: Any, words: Words, context: Context[Any, Any], hours: float
    ) -> str:
        run = wb.attach(begun["run"], self._store[1])
        self._record(run, action, words, context)
        answer = {
            "run": run.id,
            "state": run.state,
            "warnings": begun.get("warnings"),
            "notes": begun.get("notes"),
            "nodes": begun["nodes"],
            "stopped_after_hours": hours,
            "next_tool": "show",
        }
        return short(answer)

    def _record(self, run: wb.Run, action: str, words: Words, context: Context[Any, Any]) -> None:
        record_action(
            RunPaths(run.directory),
            by=_client(context),
            action=action,
            arguments=words,
            limits=str(self._limits),
        )


def _client(context: Context[Any, Any]) -> str:
    """Who asks, for the run's journal."""
    params = context.session.client_params
    client = "" if params is None else f": {params.client_info.name}"
    return f"mcp{client}"[:80]


def _is_run(dry: dict[str, Any]) -> bool:
    """Whether a launch would start one; with --help among its arguments it shows the script's."""
    return "predicted_hours" in dry


def _predicted(dry: dict[str, Any]) -> PredictedRun:
    return PredictedRun(
        hours=dry["predicted_hours"], usd=dry["predicted_usd"], usd_per_hour=dry["usd_per_hour"]
    )


def _line(row: list[Any]) -> str:
    """A row as one text: a table of text is a third of a list of objects."""
    return " ".join("-" if value is None else _figure(value) for value in row)


def _figure(value: Any) -> str:
    """Counts in full, such as steps and tokens; six digits of what is measured."""
    if isinstance(value, float):
        is_whole = value.is_integer() and abs(value) < _EXACT
        return f"{value:.0f}" if is_whole else f"{value:.6g}"
    return str(value)

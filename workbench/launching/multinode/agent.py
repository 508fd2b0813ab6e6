"""One further machine of a run: joins it, starts its own launcher, tells what it sees, ends.

    workbench node RUN_DIRECTORY --rank 1

The run directory lies on storage that all machines see; node 0's supervisor writes there what is
to be done (`node_schema.NodeOrder`), and this process what became of it (`node_schema.NodeDoc`).
It loads no torch. A launcher that an agent before this one left is taken over; processes that are
left over from an attempt are ended before the next one.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from workbench.errors import UsageError, WorkbenchError
from workbench.launching.capture.writers import LineWriter
from workbench.launching.log import guarded
from workbench.launching.multinode.node_spec import NodeStart, marker_of, node_start
from workbench.launching.multinode.node_view import rank_reports, ranks_of
from workbench.launching.multinode.reachability import ReachabilityWatch
from workbench.launching.prepare.launcher_process import start_launcher
from workbench.launching.prepare.placement import own_address
from workbench.launching.stop_ladder import end_leftovers
from workbench.observe.gpu import PatientGpuSampler
from workbench.observe.gpu_errors import GpuErrorWatch
from workbench.observe.host import HostSampler, sample_pause
from workbench.recover.policy import Recovery
from workbench.recover.preemption import Poller
from workbench.store import processes, secrets
from workbench.store.detached import lock_file
from workbench.store.files import (
    read_as,
    read_file,
    read_json,
    write_json_atomic,
    write_text_atomic,
)
from workbench.store.layout import RunPaths
from workbench.store.node_schema import NodeOrder, NodeRank
from workbench.store.ownership import check_own
from workbench.store.run_record import RunRecord
from workbench.store.schema import SCHEMA_VERSION, ProcessDoc, SystemLine

TICK_SECONDS = 0.33
REPORT_SECONDS = 1.0
SILENCE_SECONDS = 900.0  # nothing heard of node 0 for so long, and nothing of ours at work
PATIENCE_SECONDS = 20.0  # for what ends by itself
_PR_SET_CHILD_SUBREAPER = 36
Say = Callable[[str], None]


class NodeAgent:
    """The agent of one machine. `join`, then `work` until the run has ended."""

    def __init__(self, paths: RunPaths, run: RunRecord, node: int, say: Say) -> None:
        self.paths = paths
        self.run = run
        self.node = node
        self._say = say
        self._marker = marker_of(run, node)
        self._ranks = ranks_of(node, run)
        self._me = processes.identify(os.getpid())
        self._child: subprocess.Popen[bytes] | None = None
        self._launcher: ProcessDoc | None = None
        self._phase = "waiting"
        self._attempt = 0
        self._exit_code: int | None = None
        self._left = 0
        self._message: str | None = None
        self._beat = 0
        self._address: str | None = None
        self._reachability = ReachabilityWatch()
        self._heard: tuple[object, float] = (None, time.monotonic())
        self._ended_before = _end_of(paths)
        self._report_due = 0.0
        self._noticed = False
        self._stop_at: int | None = None
        self._lock: int | None = None
        self._gpus = PatientGpuSampler() if run.device == "cuda" else None
        self._gpu_errors = GpuErrorWatch()
        self._host = HostSampler(paths.directory, run)
        self._system = LineWriter(str(paths.node_system(node)))
        self._sampled: SystemLine | None = None
        self._sample_due, self._began = 0.0, time.monotonic()

    def join(self) -> None:
        """Become the machine's one agent.

        Raises:
            ForeignRunError: the run is another user's, or others can write to it.
            UsageError: it has one, or the run has no such node or has finished.
        """
        nodes = self.run.nodes
        if not 0 < self.node < nodes:
            raise UsageError(_no_such_node(self.run, self.node, nodes))
        check_own(self.paths, "joined")
        if (read_json(self.paths.exit) or {}).get("outcome") == "succeeded":
            raise UsageError(f"{self.run.run} has finished; there is nothing to join.")
        self.paths.nodes.mkdir(exist_ok=True)
        self._lock = _take_lock(self.paths, self.node)
        before = read_json(self.paths.node(self.node)) or {}
        launcher = before.get("launcher")
        if before.get("phase") == "running" and processes.is_marked(
            launcher, self._marker, self.paths.directory
        ):
            self._launcher, self._phase = launcher, "running"
            self._attempt = int(before.get("attempt") or 0)
            self._say(f"took over the launcher of attempt {self._attempt}")

    def work(self) -> int:
        """Follow the orders until the run has ended; returns an exit code."""
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphaned ranks come to us
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._hand_over)
        notices = Recovery.read(self.run.recovery).notices_from(self.run.working_directory)
        poller = None if notices is None else Poller(notices, lambda _: self._hand_over())
        if poller is not None:
            poller.start()
        try:
            return self._follow()
        finally:
            if poller is not None:
                poller.stop()
            self._reachability.end()
            self._end(patient=False)
            self._phase = "left"
            self._report()

    def _hand_over(self, *_: object) -> None:
        """This machine goes away soon, so the whole run does: all ranks save together.

        Node 0 may see the new file late, but reads this machine's own again each time.
        """
        self._noticed, self._report_due = True, 0.0
        guarded("preempt", (self.paths.control / "preempt").touch)

    def _follow(self) -> int:
        while True:
            order = read_as(NodeOrder, self.paths.node_order)
            if order is not None and "phase" in order:
                self._obey(order)
            self._look_at_launcher()
            if time.monotonic() >= self._report_due:
                self._report_due = time.monotonic() + REPORT_SECONDS
                self._report()
                end = self._exit_code_if_over()
                if end is not None:
                    return end
            time.sleep(TICK_SECONDS)

    def _obey(self, order: NodeOrder) -> None:
        attempt, phase = order["attempt"], order["phase"]
        self._reachability.aim(order["address"], order["port"])
        if phase == "gather" and (self._attempt != attempt or self._phase == "ended"):
            # An attempt that was called off before it began is called again by its number.
            self._end(patient=False)
            self._attempt, self._exit_code, self._message = attempt, None, None
            self._stop_at = None
            self._phase = "waiting"
        if phase == "gather" and self._phase == "waiting" and self._reachability.open:
            self._phase = "ready"
            self._say(f"attempt {attempt}: ready; node 0 answers at {order['address']}")
        elif phase == "go" and self._phase == "ready" and attempt == self._attempt:
            self._start(order)
        elif phase == "go" and self._phase == "running" and attempt == self._attempt:
            self._pass_on(order.get("stop_at"))
        elif phase == "end" and attempt == self._attempt and self._phase != "ended":
            self._end(patient=bool(order.get("patient")), ordered=True)
            self._phase = "ended"
            self._say(f"attempt {attempt}: ended, {self._left} processes are left")

    def _pass_on(self, stop_at: int | None) -> None:
        """Have the ranks here see the step to stop at, whenever node 0's file comes to sight."""
        if stop_at is None or stop_at == self._stop_at:
            return
        self._stop_at, path = stop_at, self.paths.control / "stop-at"
        if _number_in(path) < stop_at:
            guarded("stop-at", lambda: write_text_atomic(path, str(stop_at)))

    def _start(self, order: NodeOrder) -> None:
        try:
            start: NodeStart = node_start(self.paths, self.run, order, self.node)
            secrets.learn(start.environment)
            self._child = start_launcher(
                start.argv,
                folder=start.folder,
                environment=start.environment,
                output=self.paths.node_log(self.node),
            )
        except (OSError, WorkbenchError) as error:
            self._phase, self._message = "refused", f"Node {self.node} cannot start: {error}"
            self._say(self._message)
            return
        self._launcher, self._phase = processes.identify(self._child.pid), "running"
        ranks = f"ranks {self._ranks[0]} to {self._ranks[-1]}"
        self._say(f"attempt {self._attempt}: started the launcher of {ranks}")

    def _look_at_launcher(self) -> None:
        if self._phase != "running":
            return
        if self._child is not None:
            self._exit_code = self._child.poll()
            over = self._exit_code is not None
        else:
            over = not processes.is_alive(self._launcher)
        if over:
            self._end(patient=False)
            self._phase = "ended"
            self._say(f"attempt {self._attempt}: the launcher ended with code {self._exit_code}")

    def _end(self, *, patient: bool, ordered: bool = False) -> None:
        """No process of the attempt may live on; what ends by itself within moments may.

        `ordered`: by node 0, which has the ranks take SIGTERM for that; those here must see it too.
        """
        if patient and self._launcher is not None:
            processes.wait_gone([self._launcher], PATIENCE_SECONDS)
        terminating = self.paths.control / "terminating"
        if ordered and not terminating.exists():
            guarded("terminating", terminating.touch)
        if self._child is not None:
            self._exit_code = self._child.poll()
        left = end_leftovers(
            partial(processes.members, self._marker, (os.getpid(),), directory=self.paths.directory)
        )
        if self._child is not None and self._exit_code is None:
            self._exit_code = self._child.poll()
        self._child, self._launcher, self._left = None, None, len(left)

    def _exit_code_if_over(self) -> int | None:
        """The exit code when there is nothing to wait for any more."""
        end = _end_of(self.paths)
        if end is not None and end != self._ended_before and self._phase != "running":
            self._say(f"the run has ended: {end[1]}")
            return 1 if self._left else 0
        if end is None:
            self._ended_before = None
        beat = (read_json(self.paths.state) or {}).get("heartbeat"), end
        if beat != self._heard[0]:
            self._heard = beat, time.monotonic()
        silent = time.monotonic() - self._heard[1]
        if silent > SILENCE_SECONDS and self._phase != "running":
            self._say(
                f"Nothing was heard of node 0 for {silent / 60:.0f} minutes. Look at it, resume "
                "the run there, and start this command again."
            )
            return 1
        return None

    def _report(self) -> None:
        self._beat += 1
        towards = (read_json(self.paths.node_order) or {}).get("address")
        if towards:  # kept: without a way to node 0 no one could tell it
            self._address = own_address(str(towards)) or self._address
        ranks = rank_reports(self.paths, self._ranks)
        sample = self._sample(ranks)  # finds the GPUs, too
        document = {
            "schema": SCHEMA_VERSION,
            "node": self.node,
            "host": socket.gethostname(),
            "address": self._address,
            "boot_id": processes.boot_id(),
            "agent": self._me,
            "beat": self._beat,
            "heartbeat": round(time.time(), 3),
            "phase": self._phase,
            "attempt": self._attempt,
            "launcher": self._launcher,
            "exit_code": self._exit_code,
            "processes_left": self._left,
            "preempt": self._noticed,
            "unreachable_since": self._reachability.unreachable_since,
            "message": self._message,
            "ranks": ranks,
            "gpus": [] if self._gpus is None else [asdict(gpu) for gpu in self._gpus.gpus],
            "sample": sample,
            "gpu_errors": self._errors_of_gpus(),
        }
        path = self.paths.node(self.node)
        guarded(path.name, lambda: write_json_atomic(path, document))

    def _errors_of_gpus(self) -> list[dict[str, Any]]:
        gpus = () if self._gpus is None else self._gpus.gpus
        if not gpus:
            return []
        errors = self._gpu_errors.look([gpu.index for gpu in gpus], time.monotonic())
        return [error.document() for error in errors]

    def _sample(self, ranks: Mapping[str, NodeRank]) -> SystemLine | None:
        """This machine's hardware; kept in a file of its own, too, where samples thin out."""
        now = time.monotonic()
        if now < self._sample_due:
            return self._sampled
        self._sample_due = now + sample_pause(now - self._began)
        rank_processes = (rank.get("process") for rank in ranks.values())
        line = self._host.sample(process for process in rank_processes if process is not None)
        if self._gpus is not None:
            line["gpus"] = [sample.document() for sample in self._gpus.sample()]
        self._system.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        self._sampled = line
        return line


def _number_in(path: Path) -> int:
    """What is written there, 0 where nothing is."""
    try:
        return int(read_file(path, 64))
    except (OSError, ValueError):
        return 0


def _end_of(paths: RunPaths) -> tuple[float, str] | None:
    """When and how the run ended; None while it has not."""
    end = read_json(paths.exit)
    if end is None:
        return None
    return float(end.get("ended_at") or 0.0), str(end.get("message"))


def _no_such_node(run: RunRecord, node: int, nodes: int) -> str:
    if nodes == 1:
        return (
            f"{run.run} runs on one machine. Start one over several: "
            "workbench launch … --nodes 2 --address ADDRESS"
        )
    return (
        f"{run.run} has the nodes 0 to {nodes - 1}; node 0 is where it was launched, so --rank "
        f"is from 1 to {nodes - 1}, not {node}."
    )


def _take_lock(paths: RunPaths, node: int) -> int:
    lock = lock_file(paths.nodes / f"node-{node}.lock")
    if lock is None:
        before: dict[str, Any] = read_json(paths.node(node)) or {}
        agent: dict[str, Any] = before.get("agent") or {}
        holder = f"on {before.get('host')}, process {agent.get('pid')}"
        raise UsageError(
            f"Node {node} of {paths.directory.name} has an agent already ({holder}). Give this "
            "machine another --rank, or end that one first."
        )
    return lock

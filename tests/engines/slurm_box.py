"""A real Slurm with two virtual nodes on this machine: its own key, ports, folders; gone after use.

Needs ``apt-get install slurm-wlm munge`` and root (the daemons start processes for others).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Self

_CONF = """\
ClusterName=workbench
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldPort={ports[0]}
SlurmdSpoolDir={folder}/spool.%n
StateSaveLocation={folder}/state
SwitchType=switch/none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
KillWait=20
GresTypes=gpu
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 Gres=gpu:h100:8
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 Gres=gpu:nvidia_h200:8
PartitionName=debug Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Why there can be no Slurm here; empty = there can."""
    missing = [name for name in ("slurmctld", "slurmd", "munged") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} missing: apt-get install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "Slurm's daemons need root"


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class SlurmBox:
    """Up on entering, down on leaving."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = socket.gethostname().partition(".")[0]
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self._write()
        key = ["--key-file", str(self.folder / "munge.key")]
        sock, pid = self.folder / "munge.sock", self.folder / "munged.pid"
        log = ["--log-file", str(self.folder / "munged.log"), "--pid-file", str(pid)]
        seed = ["--seed-file", str(self.folder / "munge.seed")]
        self._start("munged", "--foreground", "--force", "--socket", str(sock), *key, *log, *seed)
        self._until(sock.exists, "munged")
        self._start("slurmctld", "-D")
        for node in ("n1", "n2"):
            self._start("slurmd", "-D", "-N", node)
        self._until(lambda: self.run("sinfo", "-h", "-o", "%t %D").strip() == "idle 2", "nodes")
        return self

    def __exit__(self, *_: object) -> None:
        self.run("scancel", "--user=root", check=False)
        with contextlib.suppress(AssertionError):
            self._until(lambda: not self.run("squeue", "-h", check=False).strip(), "jobs", 40)
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(15)
            daemon.kill()
            daemon.wait()

    def _write(self) -> None:
        folder = self.folder
        (folder / "state").mkdir(parents=True)
        (folder / "dev").mkdir()
        for number in range(8):
            (folder / "dev" / f"gpu{number}").touch()
        for node in ("n1", "n2"):
            (folder / f"spool.{node}").mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        text = _CONF.format(host=self.host, folder=folder, ports=_free_ports(3))
        (folder / "slurm.conf").write_text(text)
        types = {"n1": "h100", "n2": "nvidia_h200"}  # as people write them, and as NVML does
        gres = [
            f"NodeName={node} Name=gpu Type={name} File={folder}/dev/gpu[0-7]\n"
            for node, name in types.items()
        ]
        (folder / "gres.conf").write_text("".join(gres))

    def _start(self, *words: str) -> None:
        with (self.folder / f"{words[0]}.out").open("ab") as output:
            self._daemons.append(
                subprocess.Popen(
                    words,
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                )
            )

    def run(self, *words: str, check: bool = True) -> str:
        """Output of one of Slurm's commands, or of ours."""
        done = subprocess.run(
            words, env=self.environment, capture_output=True, text=True, check=False
        )
        assert not check or done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def story(self, directory: Path) -> str:
        """What Slurm and the run directory tell, for a test that failed."""
        told = [
            self.run("scontrol", "show", "job", check=False),
            self.run("sinfo", "-N", "-l", check=False),
        ]
        run = ["nodes/order.json", "nodes/node-1.json", "state.json", "exit.json"]
        run += ["attempts.jsonl", "logs/supervisor.log", "logs/slurm.log", "logs/launcher.log"]
        files = [directory / name for name in run] + [self.folder / "slurmctld.log"]
        for path in files:
            if path.is_file():
                told.append(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}")
        return "\n".join(told)

    @staticmethod
    def _until(condition: object, what: str, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(AssertionError):
                if condition():  # type: ignore[operator]
                    return
            assert time.monotonic() < deadline, f"Slurm: {what} not within {seconds} s"
            time.sleep(0.3)

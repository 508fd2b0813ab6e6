"""What a warm server forks is what Python would have started: seen from inside and from outside.

The servers here import a small module in place of torch, so that they cost nothing.
"""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
import types
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.conftest import allowed, until
from workbench.launching.prepare import launcher_process
from workbench.launching.warm import client, messages, sameness, scarcity
from workbench.store import processes

SAYS = """\
import atexit, json, os, signal, sys, threading
handlers = {int(n): str(signal.getsignal(n)) for n in sorted(signal.valid_signals())}
handlers = {n: h for n, h in handlers.items() if h != "Handlers.SIG_DFL"}
mask = os.umask(0o77); os.umask(mask)
main = sys.modules["__main__"]
def attribute(name):
    return str(getattr(main, name, "none")).split(" object at")[0]
names = ("__name__", "__file__", "__spec__", "__loader__", "__cached__", "__doc__", "__package__")
print(json.dumps({
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "flags": str(sys.flags),
    "executable": sys.executable, "prefix": sys.prefix, "signals": handlers, "umask": mask,
    "folder": os.getcwd(), "environment": dict(sorted(os.environ.items())),
    "files": sorted(os.listdir("/proc/self/fd")), "threads": threading.active_count(),
    "tasks": len(os.listdir("/proc/self/task")), "main": {name: attribute(name) for name in names},
    "names": sorted(vars(main)), "streams": [str(s) for s in (sys.stdin, sys.stdout, sys.stderr)],
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())), "group": os.getpgid(0) == os.getpid(),
    "session": os.getsid(0) == os.getpid(), "hash": hash("text"), "custom": "customised" in dir(os),
}, indent=0))
atexit.register(print, "atexit")
def fail(how):
    exec(how)
fail(sys.argv[1])
"""
ENDINGS = {
    "nothing": "pass",
    "exit code": "sys.exit(7)",
    "exit number": "sys.exit(2**70)",
    "exit text": "sys.exit('no such model')",
    "exception": "1/0",
    "chain": "try:\n    {}['key']\nexcept KeyError as error:\n    raise RuntimeError('bad') from error",
    "interrupt": "raise KeyboardInterrupt",
    "killed": "os.kill(os.getpid(), 9)",
    "terminated": "os.kill(os.getpid(), 15)",
    "at once": "os._exit(5)",
    "a thread": "threading.Thread(target=lambda: print('thread')).start()",
    "syntax": "1 +",
    "a last word": "global last; last = type('L', (), {'__del__': lambda s: print('deleted')})()",
    "a cycle": "global me; me = type('L', (), {'__del__': lambda s: print('deleted')})(); me.me = me",
    "no output": "sys.stdout.close()",
    "a hook": "sys.excepthook = lambda *a: print('mine', a[2].tb_frame.f_code.co_name)\n1/0",
}


class Server:
    """A warm server of one small module, and what is started beside it cold."""

    def __init__(self, folder: Path, modules: tuple[str, ...] = ("small",)) -> None:
        self.folder = folder
        self.library = folder / "library"
        self.library.mkdir()
        (self.library / "small.py").write_text(
            "import os\nSET = os.environ.get('SMALL')\nos.get_exec_path()\n"
        )
        (self.library / "sitecustomize.py").write_text("import os\nos.customised = True\n")
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(self.library),
            "PYTHONUNBUFFERED": "1",
            "PYTHONHASHSEED": "5",
        }
        kind = client.server_kind(self.environment, 1)
        self.kind = client.ServerKind(environment=kind.environment, modules=modules)
        (self.library / "sets.py").write_text(
            "import os\nfor name in ('SET_A', 'SET_B'):\n    os.environ.setdefault(name, 'import')\n"
        )
        (self.library / "mortal.py").write_text(
            "import os, sys\nclass Library:\n    def __del__(self, write=os.write):\n"
            "        write(1, b'library ends')\nlibrary = Library()\n"
            "os.module = sys.modules[__name__]\n"  # so Python clears it, although it is frozen
        )
        (self.library / "lists.py").write_text(
            "import os\nALL = [dict(os.environ), {**os.environ}]\n"
        )
        (self.library / "threaded.py").write_text(
            "import threading\n"
            "threading.Thread(target=threading.Event().wait, name='flusher', daemon=True).start()\n"
        )
        self.script = folder / "script.py"
        self.script.write_text(SAYS)
        client.start_server(self.kind)

    def start(self, *arguments: str, script: Path | None = None, **more: str) -> client.WarmProcess:
        output = os.open(self.folder / "warm.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            return client.start_process(
                self.kind.address,
                [sys.executable, str(script or self.script), *arguments],
                folder=str(self.folder),
                environment={**self.environment, "OMP_NUM_THREADS": "1", **more},
                output=output,
            )
        finally:
            os.close(output)

    def run(self, *arguments: str) -> tuple[int, str]:
        process = self.start(*arguments)
        try:
            return process.wait(240), (self.folder / "warm.log").read_text()
        finally:
            process.close()

    def run_cold(self, *arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, str(self.script), *arguments],
            cwd=self.folder,
            env={**self.environment, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            check=False,
        )
        return done.returncode, done.stdout

    def status(self) -> Mapping[str, object] | None:
        return client.ask(self.kind.address, "status")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("small"))
    yield made
    client.ask(made.kind.address, "stop")


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """One that a test may spoil."""
    made = Server(tmp_path)
    yield made
    client.ask(made.kind.address, "stop")


@pytest.mark.parametrize("how", ENDINGS.values(), ids=ENDINGS)
def test_a_fork_says_and_ends_what_python_itself_does(server: Server, how: str) -> None:
    assert server.run(how) == server.run_cold(how)


@pytest.mark.parametrize(
    ("how", "last"),
    [
        ("pass", ""),
        ("sys.exit(3)", ""),
        ("1/0", "library ends"),
        ("threading.Thread(target=time.sleep, args=(60,), daemon=True).start()", "library ends"),
        ("import ctypes; ctypes.CDLL('libz.so.1')", "library ends"),
    ],
)
def test_a_fork_leaves_its_libraries_unless_something_may_happen_at_the_exit(
    tmp_path: Path, how: str, last: str
) -> None:
    own = Server(tmp_path, ("mortal",))
    own.script.write_text(
        "import sys, threading, time, mortal, beside\n"
        "kept = open('kept.txt', 'w')\nkept.write('script')\n"
        f"{how}\n"
    )
    (tmp_path / "beside.py").write_text("kept = open('beside.txt', 'w')\nkept.write('module')\n")
    try:
        code, output = own.run()
        texts = [(tmp_path / name).read_text() for name in ("kept.txt", "beside.txt")]
    finally:
        client.ask(own.kind.address, "stop")
    assert texts == ["script", "module"], "files that were never closed"
    cold_code, cold = own.run_cold()
    assert cold.endswith("library ends")
    assert (code, output) == (cold_code, cold.removesuffix("library ends") + last)


def test_a_library_that_copies_the_environment_has_asked_for_no_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COPIED", "1")
    own = Server(tmp_path, ("small", "lists"))
    try:
        process = own.start("pass", COPIED="2")
        assert process.wait(240) == 0
        process.close()
        with pytest.raises(client.NotWarmError, match="SMALL is '1' here"):
            own.start("pass", SMALL="1")
    finally:
        client.ask(own.kind.address, "stop")


def test_a_fork_shows_its_own_environment_and_command(server: Server) -> None:
    marker = uuid.uuid4().hex
    process = server.start("import time; time.sleep(600)", WORKBENCH_RUN_ID=marker)
    try:
        [found] = processes.find_marked(marker)  # neither reaper nor server bear it
        assert found["pid"] == process.pid
        assert processes.is_marked(found, marker)
        command = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")[0].decode()
        assert command == f"{sys.executable} {server.script} import time; time.sleep(600)"
    finally:
        process.kill()
        assert process.wait(240) == -9
        process.close()
    until(lambda: processes.identify(process.reaper) is None, 10, "the reaper has gone")


def test_children_of_a_fork_inherit_its_marker(server: Server) -> None:
    words, marker = "os.fork(); import time; time.sleep(600)", uuid.uuid4().hex
    process = server.start(words, WORKBENCH_RUN_ID=marker)
    until(lambda: len(processes.find_marked(marker)) == 2, 10, "parent and child are found")
    process.kill()
    process.wait(240)
    [orphan] = processes.find_marked(marker)
    assert processes.stat_fields(orphan["pid"])[1] == str(process.reaper)  # type: ignore[index]
    processes.send_signal(orphan, 9)
    process.close()


def test_the_users_own_customisation_runs_in_the_fork_alone(server: Server) -> None:
    assert '"custom": true' in server.run("pass")[1]


def test_a_run_goes_on_when_its_server_is_killed(own_server: Server) -> None:
    process = own_server.start("import time; time.sleep(1); sys.exit(3)")
    pid = (own_server.status() or {})["pid"]
    assert isinstance(pid, int)
    os.kill(pid, 9)
    assert process.wait(240) == 3
    process.close()
    with pytest.raises(client.NotWarmError, match="no warm server"):
        client.connect(own_server.kind.address)
    client.start_server(own_server.kind)  # the socket file that it left is in no one's way
    assert own_server.run("sys.exit(4)")[0] == 4


def test_a_keeper_that_was_killed_leaves_no_exit_code(own_server: Server) -> None:
    process = own_server.start("import time; time.sleep(600)")
    os.kill(process.reaper, 9)
    until(lambda: (process.poll(), process.lost)[1], 10, "the loss is seen")
    assert process.poll() is None
    assert process.is_alive
    with pytest.raises(client.NotWarmError, match="reaper is gone"):
        process.wait(1)
    process.kill()
    process.close()


def test_a_server_without_work_leaves(tmp_path: Path) -> None:
    kind = client.ServerKind(environment=(("PATH", os.environ["PATH"]),), modules=("json",))
    client.start_server(kind, idle_seconds=0.2)
    until(kind.address.exists, 10, "it listens")
    until(lambda: not kind.address.exists(), 20, "it has left")


SHORT = """\
import sys
sys.modules["_workbench_warm.scarcity"].ROOT = {root!r}
sys.modules["_workbench_warm.server"].LOOK_SECONDS = 0.5
"""


def test_a_server_without_work_leaves_when_memory_is_short(tmp_path: Path) -> None:
    meminfo = tmp_path / "proc" / "meminfo"
    meminfo.parent.mkdir()
    meminfo.write_text("MemTotal:  1000 kB\nMemFree:  10 kB\nMemAvailable:  200 kB\n")
    (tmp_path / "short.py").write_text(SHORT.format(root=str(tmp_path)))
    known = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
    kind = client.ServerKind(environment=tuple(sorted(known.items())), modules=("short",))
    client.start_server(kind)
    until(kind.address.exists, 10, "it listens")
    (status,) = [one for one in client.servers() if one["modules"] == ["short"]]
    assert status["running"] == 0
    meminfo.write_text("MemTotal:  1000 kB\nMemFree:  10 kB\nMemAvailable:  99 kB\n")
    until(lambda: not kind.address.exists(), 20, "it has left")


@pytest.mark.parametrize(
    ("files", "scarce"),
    [
        ({}, False),
        ({"proc/meminfo": "MemTotal: 64 kB\nMemAvailable: 5 kB\n"}, True),
        ({"proc/meminfo": "MemTotal: 64 kB\n"}, False),
        ({"memory.max": "max", "memory.current": "9", "memory.stat": ""}, False),
        ({"memory.max": "100", "memory.current": "95"}, True),
        ({"memory.max": "100", "memory.current": "95", "cached": "30"}, False),
        ({"memory/memory.limit_in_bytes": "50", "memory/memory.usage_in_bytes": "46"}, True),
    ],
)
def test_memory_is_short_on_the_host_or_under_a_limit(
    files: dict[str, str], *, scarce: bool, tmp_path: Path
) -> None:
    cached = files.pop("cached", "0")
    for name, text in files.items():
        place = tmp_path / (name if name.startswith("proc") else f"sys/fs/cgroup/{name}")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        prefix = "total_" if place.parent.name == "memory" else ""
        stat = f"anon 1\n{prefix}inactive_file {cached}\n{prefix}active_file 0\n"
        (place.parent / "memory.stat").write_text(stat)
    assert scarcity.is_scarce(str(tmp_path)) is scarce


@pytest.mark.parametrize(
    ("name", "value"),
    [("MKL_NUM_THREADS", "3"), ("OMP_NUM_THREADS", "7"), ("PYTHONHASHSEED", "6"), ("SMALL", "1")],
)
def test_a_variable_that_was_read_at_the_start_is_refused(
    server: Server, name: str, value: str
) -> None:
    with pytest.raises(client.NotWarmError, match=f"{name} is '{value}' here, and was"):
        server.start("pass", **{name: value})


def test_a_fork_has_the_variables_that_imports_have_set(tmp_path: Path) -> None:
    """As `import deepspeed` sets one: the script imports it again, and nothing happens then."""
    server = Server(tmp_path, ("sets",))
    try:
        server.script.write_text(
            "import os, sets\nprint(os.environ['SET_A'], os.environ['SET_B'])\n"
        )
        process = server.start()
        assert process.wait(240) == 0
        process.close()
        assert (tmp_path / "warm.log").read_text() == "import import\n"
        with pytest.raises(client.NotWarmError, match="SET_A is 'given' here, and was not set"):
            server.start(SET_A="given")
    finally:
        client.ask(server.kind.address, "stop")


def test_a_library_that_starts_a_thread_is_refused(tmp_path: Path) -> None:
    server = Server(tmp_path, ("threaded",))
    try:
        with pytest.raises(client.NotWarmError, match="started the thread flusher"):
            server.start("pass")
    finally:
        client.ask(server.kind.address, "stop")


def test_the_launchers_word_to_deepspeed_ranks_is_taken_over(server: Server) -> None:
    """DeepSpeed sets it in the launcher; torch asks for it whenever it looks for a GPU."""
    process = server.start(
        "sys.exit(os.environ['PYTORCH_NVML_BASED_CUDA_CHECK'])", PYTORCH_NVML_BASED_CUDA_CHECK="1"
    )
    assert process.wait(240) == 1
    process.close()


def test_a_server_tells_what_was_read_whatever_that_was(server: Server) -> None:
    assert "SMALL" in (server.status() or {})["read"]  # type: ignore[operator]


def test_variables_that_nobody_read_are_taken_over(server: Server) -> None:
    process = server.start("sys.exit(int(os.environ['UNHEARD_OF']))", UNHEARD_OF="11")
    assert process.wait(240) == 11
    process.close()


def test_another_python_and_what_is_no_script_are_refused(server: Server) -> None:
    for argv in (["/usr/bin/python3", "x.py"], [sys.executable, "-c", "1"], [sys.executable, "x"]):
        with pytest.raises(client.NotWarmError, match="is not a"):
            client.start_process(
                server.kind.address, argv, folder="/tmp", environment=server.environment, output=1
            )


def test_a_script_beside_a_file_that_hides_a_library_is_refused(
    server: Server, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import small\n")
    (tmp_path / "small.py").write_text("")
    with pytest.raises(client.NotWarmError, match="would be imported as small by a cold start"):
        server.start(script=script)


def test_a_library_that_changed_on_disk_ends_the_server(own_server: Server) -> None:
    assert own_server.run("pass")[0] == 0
    library = own_server.library / "small.py"
    library.write_text(library.read_text() + "NEW = 1\n")
    with pytest.raises(client.NotWarmError, match=r"small\.py has changed since"):
        own_server.start("pass")
    until(lambda: not own_server.kind.address.exists(), 10, "it has left")
    client.start_server(own_server.kind)
    assert own_server.run("import small; sys.exit(small.NEW)")[0] == 1


def test_a_launcher_asks_the_server_that_its_launch_has_started(server: Server) -> None:
    """Under whatever it runs itself: the server says what does not fit."""
    output = server.folder / "launcher.log"

    def launched(threads: int, **more: str) -> str | None:
        launcher = launcher_process.start(
            [sys.executable, str(server.script), "pass"],
            folder=str(server.folder),
            environment={**server.environment, "OMP_NUM_THREADS": "1", **more},
            output=output,
            warm={"threads": threads, "modules": [], "server": str(server.kind.address)},
        )
        until(lambda: launcher.ended()[0], 60, "its end")
        assert launcher.ended() == (True, 0)
        launcher.close()
        return launcher.why_cold

    assert launched(7) is None
    why = launched(1, TORCH_SHOW_CPP_STACKTRACES="0")
    assert why is not None
    assert "TORCH_SHOW_CPP_STACKTRACES is '0' here" in why


def test_other_limits_are_refused(server: Server) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        with pytest.raises(client.NotWarmError, match="its RLIMIT_NOFILE is"):
            server.start("pass")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_cuda_that_was_initialised_is_refused() -> None:
    for used in (True, False):
        cuda = types.SimpleNamespace(is_initialized=lambda used=used: used)
        why = sameness.cuda_in_use({"torch": types.SimpleNamespace(cuda=cuda)})
        assert (why is not None) == used


def test_a_socket_lies_where_its_name_is_not_too_long(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    long = tmp_path / ("job-" * 24)
    monkeypatch.delenv(client.FOLDER, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    kind = client.ServerKind(environment=())
    with socket.socket(socket.AF_UNIX) as listener:
        free = kind.address.with_name("0123456789abcdee.sock")  # no server's
        listener.bind(str(free))
    free.unlink()
    monkeypatch.setenv(client.FOLDER, str(long))
    with pytest.raises(client.HostError, match="Set WORKBENCH_WARM_DIR to a folder with a name of"):
        client.socket_folder()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_gets_no_answer(server: Server) -> None:
    """Even where someone has opened folder and socket to all."""
    assert server.run("pass")[0] == 0  # it is there
    folder, path = server.kind.address.parent, server.kind.address
    code = (
        "import os, socket; os.setuid(65534); s = socket.socket(socket.AF_UNIX); "
        f"s.connect({str(path)!r}); s.sendall(b'x'); print(s.recv(10))"
    )
    try:
        folder.chmod(0o777)
        path.chmod(0o777)
        with pytest.raises(client.HostError, match="not a folder that you alone can enter"):
            client.socket_folder()
        told = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
    finally:
        folder.chmod(0o700)
    assert told.stdout == "b''\n" or "Broken pipe" in told.stderr or "reset" in told.stderr
    assert server.run("pass")[0] == 0


def test_a_server_of_another_user_is_not_trusted(
    monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    path = server.kind.address
    monkeypatch.setattr(messages.os, "getuid", lambda: 4242)
    with pytest.raises(client.NotWarmError, match="another user's"):
        client.connect(path)


def test_a_client_that_says_nothing_or_nonsense_hurts_nobody(server: Server) -> None:
    silent = client.connect(server.kind.address)
    silent.close()
    broken = client.connect(server.kind.address)
    messages.send(broken, {"do": "start", "order": {"unknown": 1}})
    assert broken.recv(1) == b""
    broken.close()
    begin = time.monotonic()
    assert server.run("pass")[0] == 0
    assert time.monotonic() - begin < allowed(30)


def test_a_client_that_gave_up_has_nothing_started(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts cold then: two of one run would write to one folder."""
    ran, receive = server.folder / "ran", client.receive

    def too_late(connection: socket.socket, files: int = 0) -> object:
        receive(connection, files)
        raise TimeoutError("timed out")

    with monkeypatch.context() as patch:
        patch.setattr(client, "receive", too_late)
        with pytest.raises(client.NotWarmError, match="timed out"):
            server.start(f"open({str(ran)!r}, 'w')")
    assert server.run("pass")[0] == 0
    assert not ran.exists()
    assert server.run(f"open({str(ran)!r}, 'w')")[0] == 0
    assert ran.exists()

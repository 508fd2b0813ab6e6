"""Shared fixtures: a store of one's own, scripts, and runs that are always cleaned up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

import workbench as wb
from workbench.launching.multinode.node_spec import marker_of
from workbench.launching.warm import client
from workbench.store import processes
from workbench.store.files import read_json
from workbench.store.run_record import RunRecord

os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell starts `pytest … &` with Ctrl-C ignored, and every child inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# jsonschema would build twenty grammars for the formats "iri" and "iri-reference", which no notebook
# has: two seconds of each process.
sys.modules.setdefault("rfc3987_syntax", None)  # pyright: ignore[reportArgumentType]
pytest_plugins = ["pytester", "tests.cpu_budget", "tests.old_store", "tests.pod.fixture"]
SCRIPTS = Path(__file__).parent / "scripts"
TINY_GPT = ("--layers", "1", "--hidden", "32", "--heads", "2", "--seq-len", "32")
"""Arguments of the recipe gpt: a model whose steps take milliseconds."""

# Property tests try the same examples each time: a newcomer's run does not go red by chance, and
# nothing is replayed from a database. `--hypothesis-profile=soak` draws new ones; what it finds
# becomes an @example of its test.
try:
    from hypothesis import settings
except ImportError:
    pass
else:
    settings.register_profile("fixed", derandomize=True, database=None, deadline=None)
    settings.register_profile("soak", database=None, deadline=None, print_blob=True)
    settings.load_profile("fixed")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what a program printed that failed under ``subprocess.run(…, check=True)``."""
    report = yield
    error = call.excinfo and call.excinfo.value
    if isinstance(error, (subprocess.CalledProcessError, subprocess.TimeoutExpired)):
        for name, printed in (("stdout", error.stdout), ("stderr", error.stderr)):
            text = printed.decode(errors="replace") if isinstance(printed, bytes) else printed
            if text:
                report.sections.append((f"{name} of the program", text[-8000:]))
    return report


def _restored() -> Iterator[None]:
    before = dict(os.environ)
    yield
    for name in {*os.environ, *before} - {"PYTEST_CURRENT_TEST"}:
        if name not in before:
            del os.environ[name]
        elif os.environ.get(name) != before[name]:
            os.environ[name] = before[name]


@pytest.fixture(scope="module", autouse=True)
def environment_of_module() -> Iterator[None]:
    """Variables that a fixture's library sets in this process end with the module."""
    yield from _restored()


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """Variables that a library sets in this process, as Accelerate does, end with the test."""
    yield from _restored()


@pytest.fixture(scope="session", autouse=True)
def warm_servers() -> Iterator[None]:
    """Warm servers of this session alone; started by the first run that wants one, ended with it.

    Their folder is new: a server that was left behind has other code than what is tested.
    """
    with tempfile.TemporaryDirectory(prefix="warm-") as folder, pytest.MonkeyPatch.context() as own:
        own.setenv(client.FOLDER, folder)
        yield
        client.stop_servers()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """A store whose runs are stopped when the test is over, whatever happened."""
    root = tmp_path / "runs"
    yield root
    for run_id in wb.Store(root).ids():
        run = wb.Run(wb.Store(root).find(run_id))
        marker = run.document.get("marker")
        if run.status.live:
            (run.directory / "control" / "stop-now").touch()
        for process in processes.find_marked(marker):
            processes.send_signal(process, 9)


@pytest.fixture
def agents(store: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Agents of node 1 that are ended with the test, whatever happened, and their ranks."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()
    for run_id in wb.Store(store).ids():
        run = wb.Run(wb.Store(store).find(run_id))
        for process in processes.find_marked(marker_of(RunRecord.of(run.document), 1)):
            processes.send_signal(process, signal.SIGKILL)


@pytest.fixture
def start(store: Path) -> Callable[..., wb.Run]:
    """Launch a script of tests/scripts on CPU: warm, or `cold` where the launcher is the subject."""

    def start_run(
        script: str, arguments: tuple[str, ...] = (), *, cold: bool = False, **options: object
    ) -> wb.Run:
        path = SCRIPTS / script
        target = path if path.exists() else script
        warm = not cold and options.get("nodes", 1) == 1
        return wb.launch(target, list(arguments), cpu=True, store=store, warm=warm, **options)

    return start_run


def rank_pid(directory: Path, rank: int) -> int:
    """The process of a rank as its run tells it: a moment after the rank's first steps are seen."""

    def pid() -> int | None:
        ranks = (read_json(directory / "state.json") or {}).get("ranks") or {}
        return ranks.get(str(rank), {}).get("pid")

    until(pid, 60, f"the process of rank {rank}")
    return pid() or 0


def until(
    condition: Callable[[], object], seconds: float = 60.0, what: str | Callable[[], str] = ""
) -> None:
    """Wait for a condition, or fail saying what did not happen (`what` may look it up then).

    `seconds` are those of an idle machine: a busy one gets more, a hang still ends.
    """
    began, longest = time.monotonic(), 0.0
    while not condition():
        longest = max(longest, allowed(seconds))
        if time.monotonic() - began >= longest:
            told = what() if callable(what) else what
            pytest.fail(f"not within {longest:.0f} s: {told or condition}")
        time.sleep(0.05)


def full_tests(request: pytest.FixtureRequest) -> bool:
    """Whether this session has tests of the module that run in `make test-all` only."""
    return any(
        one.path == request.path and one.get_closest_marker("full") is not None
        for one in request.session.items
    )


def allowed(seconds: float) -> float:
    """What may take `seconds` on an idle machine may take so long on this one now.

    Twice as long always, and up to five times where many processes want each core.
    """
    per_core = os.getloadavg()[0] / (os.cpu_count() or 1)
    return seconds * min(5.0, max(2.0, 2.0 * per_core))

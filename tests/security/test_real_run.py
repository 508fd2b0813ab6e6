"""S6, S7, S13, S14, S19, S20: one real run that tells its keys, watched from all sides."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import workbench as wb
from tests.conftest import until
from tests.security.payloads import TOKENS
from workbench.store import processes

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
OWN_WORDS = ("logs/rank-",)  # what a rank prints itself stays as it printed it
BY_ARGUMENT = {"HF_TOKEN", "WANDB_API_KEY", "SLACK_TOKEN", "OPENAI_API_KEY"}


@dataclass
class Seen:
    """What was there to see while the run was at work, and what it left."""

    run: wb.Run
    apart: bool
    commands: dict[int, str] = field(default_factory=dict)
    listening: list[str] = field(default_factory=list)
    outcome: str | None = None


def can_unshare() -> bool:
    if shutil.which("unshare") is None:
        return False
    return (
        subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False).returncode == 0
    )


def listening(pid: int) -> list[str]:
    """Addresses on which a process listens, as the kernel of its own network sees them.

    A process that ends meanwhile listens nowhere.
    """
    open_sockets = set()
    found: list[str] = []
    try:
        handles = list(Path(f"/proc/{pid}/fd").iterdir())
        tables = [Path(f"/proc/{pid}/net/{family}").read_text() for family in ("tcp", "tcp6")]
    except (FileNotFoundError, ProcessLookupError):
        return found
    for handle in handles:
        try:
            open_sockets.add(str(handle.readlink()))
        except OSError:
            continue
    for table in tables:
        for line in table.splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in open_sockets:
                found.append(words[1])
    return found


def is_loopback(address: str) -> bool:
    host = address.partition(":")[0]
    return host.endswith("7F") if len(host) == 8 else host == "0" * 24 + "01000000"


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    place = tmp_path_factory.mktemp("leaky")
    (place / "tokens.json").write_text(json.dumps(TOKENS))
    apart = can_unshare()
    client = subprocess.run(
        [
            *(["unshare", "-n"] if apart else []),
            *(sys.executable, str(HERE / "client.py"), str(HERE / "leaky.py")),
            *(str(place / "runs"), str(place / "go"), str(place / "tokens.json")),
            "apart" if apart else "here",
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
        timeout=120,
    )
    assert client.returncode == 0, client.stderr
    run = wb.Run(wb.Store(place / "runs").find(Path(client.stdout.strip()).name))
    seen = Seen(run, apart)
    marker = run.document["marker"]
    try:
        until(lambda: run.view()["steps"] >= 3 or not run.status.live, 90, "the first steps")
        pids = [process["pid"] for process in processes.find_marked(marker)]
        supervisor = json.loads((run.directory / "state.json").read_text())["supervisor"]["pid"]
        for pid in [*pids, supervisor]:
            seen.commands[pid] = Path(f"/proc/{pid}/cmdline").read_text()
            seen.listening += [f"{address} of {seen.commands[pid]!r}" for address in listening(pid)]
        (place / "go").touch()
        seen.outcome = run.wait(240)
        yield seen
    finally:
        for process in processes.find_marked(marker):
            processes.send_signal(process, 9)


def test_it_needs_no_network(seen: Seen) -> None:
    if not seen.apart:
        pytest.skip("a network namespace needs a privilege that is missing here")
    assert seen.outcome == "failed", seen.run.status
    assert "401" in seen.run.status.message
    assert seen.run.summary()["failed_rank"] == 0
    assert seen.run.view()["steps"] >= 5


def test_no_key_of_the_environment_is_on_a_command_line(seen: Seen) -> None:
    assert len(seen.commands) >= 4  # launcher, two ranks, supervisor
    for name, token in TOKENS.items():
        if name not in BY_ARGUMENT:  # what the user gives as an argument, every process can read
            assert not [line for line in seen.commands.values() if token in line], name
    supervisor = list(seen.commands.values())[-1]
    assert not [name for name, token in TOKENS.items() if token in supervisor]


def test_nothing_listens_beyond_loopback(seen: Seen) -> None:
    assert seen.listening
    assert [line for line in seen.listening if not is_loopback(line.split(" ")[0])] == []


def leaks(directory: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            names = [name for name, token in TOKENS.items() if token.encode() in data]
            if names:
                found[str(path.relative_to(directory))] = names
    return found


def test_no_file_of_ours_has_a_key(seen: Seen) -> None:
    found = leaks(seen.run.directory)
    assert any(name.startswith("logs/rank-0") for name in found)  # the user's own log is complete
    ours = {name: keys for name, keys in found.items() if not name.startswith(OWN_WORDS)}
    shaped = {
        name: [key for key in keys if key != "MY_SERVICE_PASSWORD"]
        for name, keys in ours.items()
        if name not in {"logs/launcher.log", "attempts.jsonl"}
    }
    assert not {name: keys for name, keys in shaped.items() if keys}
    assert "[redacted]" in (seen.run.directory / "view.json").read_text()
    assert "[redacted]" in (seen.run.directory / "report.html").read_text()


def test_no_attempt_tells_a_key(seen: Seen) -> None:
    found = leaks(seen.run.directory).get("attempts.jsonl", [])
    assert not [key for key in found if key != "MY_SERVICE_PASSWORD"]


def test_a_password_without_a_shape_is_hidden_by_its_variable(seen: Seen) -> None:
    found = leaks(seen.run.directory)
    assert not {name for name in found if not name.startswith((*OWN_WORDS, "logs/launcher"))}


def test_no_summary_or_page_state_has_a_key(seen: Seen) -> None:
    widgets = pytest.importorskip("workbench_widgets")
    run = seen.run
    dashboard = widgets.RunDashboard(run)
    table = widgets.Runs(store=run.directory.parent)
    try:
        shown = [
            *map(json.dumps, (run.document, run.summary(), wb.runs(run.directory.parent))),
            *(repr(dict(face.get_state())) for face in (dashboard, table)),
            *map(repr, (run, dashboard, table)),
        ]
    finally:
        dashboard.close()
        table.close()
    for text in shown:
        assert not [
            name
            for name, token in TOKENS.items()
            if token in text and name != "MY_SERVICE_PASSWORD"
        ]


def test_a_dry_run_shows_no_key_beside_what_it_must(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The printed command is complete, or it could not be pasted; keys of the environment stay out."""
    for name, token in TOKENS.items():
        monkeypatch.setenv(name, token)
    request = wb.request(HERE / "leaky.py", ["x"], cpu=True, processes=2, store=tmp_path)
    shown = request.shell() + json.dumps([request.command, request.config_files])
    shown += request.shell(hooked=True)
    assert not [name for name, token in TOKENS.items() if token in shown]


def test_others_can_read_nothing(seen: Seen) -> None:
    assert seen.run.directory.stat().st_mode & 0o077 == 0
    for name in ("run.json", "state.json", "view.json", "exit.json", "report.html"):
        assert (seen.run.directory / name).stat().st_mode & 0o077 == 0, name

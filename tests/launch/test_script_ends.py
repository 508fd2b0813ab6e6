"""A script ends under the capture hook as it does without it, and the record says how."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.ranks import run_warm
from workbench.launching.capture import SITE_FOLDER, launcher_folder
from workbench.launching.prepare import accelerate_config

UNKNOWN = (True, None)  # no record, or one that says no more than that the script's code is over
ENDINGS = {
    "interrupt": ("raise KeyboardInterrupt", (False, -signal.SIGINT)),
    "signal": ("os.kill(os.getpid(), 2); time.sleep(9)", (False, -signal.SIGINT)),
    "interrupt of its own kind": ("raise type('K', (KeyboardInterrupt,), {})", (False, 1)),
    "interrupt, own hook": (
        "sys.excepthook = lambda *a: print('mine')\nraise KeyboardInterrupt",
        (False, -signal.SIGINT),
    ),
    "interrupt, then exec at exit": (
        "atexit.register(exec, 'pass')\nraise KeyboardInterrupt",
        (False, -signal.SIGINT),
    ),
    "interrupt that is told and caught": (
        (
            "try:\n    raise KeyboardInterrupt\n"
            "except KeyboardInterrupt:\n    sys.excepthook(*sys.exc_info())"
        ),
        None,
    ),
    "no text of its own": (
        "raise type('E', (Exception,), {'__str__': lambda s: 1 / 0})",
        (False, 1),
    ),
    "exit keyword": ("exit(code=3)", (False, 3)),
    "exit wrong keyword": ("sys.exit(status=3)", (False, 1)),
    "exit large": ("sys.exit(2**70)", (False, 255)),
    "exit 300": ("sys.exit(300)", (False, 44)),
    "exit 256": ("sys.exit(256)", UNKNOWN),
    "exit true": ("sys.exit(True)", (False, 1)),
    "exit, caught, exit": ("try:\n    sys.exit(2)\nexcept SystemExit:\n    sys.exit()", UNKNOWN),
    "exit raised": ("raise SystemExit(6)", UNKNOWN),
    "exit of a thread": (
        "t = threading.Thread(target=sys.exit, args=(5,)); t.start(); t.join()",
        UNKNOWN,
    ),
    "exit in a handler": ("atexit.register(sys.exit, 5)", UNKNOWN),
    "exception in a handler": ("atexit.register(int, 'x')", UNKNOWN),
    "quit closes the input": (
        "try:\n    quit()\nexcept SystemExit:\n    sys.exit(30 + sys.stdin.closed)",
        (False, 31),
    ),
    "at once": ("os._exit(7)", None),
    "broken pipe": (
        "r, w = os.pipe(); os.close(r); os.dup2(w, 1)\nprint('unheard')",
        (False, 1),
    ),
    "closed output": ("os.close(1)\nprint('unheard')", (False, 1)),
}


def environment(folder: Path | None) -> dict[str, str]:
    """Of a rank; hooked where there is a run directory."""
    plain = {key: value for key, value in os.environ.items() if key != "WORKBENCH_RANK_PID"}
    if folder is None:
        return plain
    for name in ("metrics", "logs", "control"):
        (folder / name).mkdir(parents=True)
    return plain | {"PYTHONPATH": str(SITE_FOLDER), "WORKBENCH_RUN_DIR": str(folder)}


@pytest.mark.parametrize(("ending", "record"), ENDINGS.values(), ids=ENDINGS)
def test_a_script_ends_as_without_the_hook(
    tmp_path: Path, ending: str, record: tuple[bool, int | None] | None
) -> None:
    (tmp_path / "train.py").write_text(f"import atexit, os, sys, threading, time\n{ending}\n")
    run = tmp_path / "run"
    plain, hooked = (
        subprocess.Popen(
            [sys.executable, "-u", "train.py"],
            cwd=tmp_path,
            env=environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for folder in (None, run)
    )
    assert hooked.wait(240) == plain.wait(240)
    end = run / "metrics" / "rank-0.end.json"
    if record is not None:
        told = json.loads(end.read_text())
        assert (told["ok"], told["exit_code"]) == record
    log = (run / "logs" / "rank-0.log").read_text()
    assert "Error in sys.excepthook" not in log
    assert "ends.py" not in log


HANDLERS = {
    "in the handler": ("except ValueError:\n    sys.exit(1)", "train.py:3 in load"),
    "argparse": (
        (
            "except ValueError:\n    pass\n"
            "import argparse\nargparse.ArgumentParser().parse_args(['--lr'])"
        ),
        "train.py:9 in <module>",
    ),
    "after the handler": ("except ValueError:\n    pass\nsys.exit(1)", "train.py:8 in <module>"),
    "and after another exit": (
        (
            "except ValueError:\n    try:\n        sys.exit(1)\n    except SystemExit:\n"
            "        pass\nsys.exit(1)"
        ),
        "train.py:11 in <module>",
    ),
}


@pytest.mark.parametrize(("handler", "where"), HANDLERS.values(), ids=HANDLERS)
def test_an_exit_from_a_handler_names_the_line_of_the_error(
    tmp_path: Path, handler: str, where: str
) -> None:
    (tmp_path / "train.py").write_text(
        "import sys\ndef load():\n    return int('api_key=\"hunter2hunter2\"')\n"
        f"try:\n    load()\n{handler}\n"
    )
    run = tmp_path / "run"
    subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=environment(run), check=False, timeout=240
    )
    record = (run / "metrics" / "rank-0.end.json").read_text()
    told = json.loads(record)
    assert told["where"] == where
    assert told["exception"] is None
    assert "hunter2hunter2" not in record
    links = [link["exception"].partition(":")[0] for link in told["chain"]]
    assert links == (
        [] if "<module>" in where else [f"exit code {told['exit_code']}", "ValueError"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_an_interrupted_rank_is_told_as_such_by_a_launcher_that_leaves_no_folder(
    tmp_path: Path, ranks: int
) -> None:
    script = tmp_path / "train.py"
    place = "print('folder:', os.environ.get('TORCHELASTIC_ERROR_FILE', ''), flush=True)"
    script.write_text(f"import os\n{place}\nraise KeyboardInterrupt\n")
    argv = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", str(ranks)]
    words = ["--num_machines", "1", "--main_process_port", "0", str(script)]
    words = [*(["--multi_gpu"] if ranks > 1 else ["--cpu"]), *words]  # with --cpu there is one
    own = {**accelerate_config.environment("cpu"), "OMP_NUM_THREADS": "1"}
    run, ends = tmp_path / "run", []
    for folder in (None, run):
        done = run_warm([*argv, *words], tmp_path, environment(folder) | own)
        codes = re.findall(r"exitcode\s*: -?\d+|<Signals\.\w+", done.stdout)
        ends.append((done.returncode, codes[:1]))  # that of the other rank may be the launcher's
    assert ends[0] == ends[1]
    assert ends[0][1], "the launcher names the signal"
    logs = "".join(path.read_text() for path in (run / "logs").glob("rank-*.log"))  # one may do
    places = [line for line in logs.splitlines() if line.startswith("folder: ")]
    assert places
    assert all((str(run / "logs") in place) is (ranks > 1) for place in places)
    assert not [*(run / "logs").glob("torchelastic_*")]


def test_a_killed_launchers_folder_goes_when_the_run_ends_but_for_what_a_rank_wrote(
    tmp_path: Path,
) -> None:
    logs = tmp_path / "[run]" / "logs"
    empty, error = logs / "torchelastic_a" / "none_b" / "0", logs / "torchelastic_c" / "error.json"
    empty.mkdir(parents=True)
    error.parent.mkdir()
    error.write_text("{}")
    launcher_folder.remove_left(str(logs.parent))
    assert [path.name for path in logs.iterdir()] == ["torchelastic_c"]
    assert error.exists()

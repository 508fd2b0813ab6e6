"""A run goes to a real S3 server and comes back; what fails on the way loses nothing."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
import signal
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.conftest import until
from tests.recover.soak_disk import small_disk
from tests.storage.conftest import BUCKET, ROOT, S3, SECRET, save
from workbench.errors import StorageError, StoreError, UsageError
from workbench.launching.resume.arrival import pull
from workbench.recipes import checkpoint_files
from workbench.recover.checkpoints import list_checkpoints, manifest_path, verify
from workbench.storage import remote
from workbench.storage.manifest import read_remote_run
from workbench.storage.push import push
from workbench.storage.remote import Remote
from workbench.store.files import append_line, read_json, write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.record import read_run
from workbench.store.runs import Store

URL = f"{BUCKET}/runs"
HERE = f"{URL}/gpt-2"


def test_a_run_comes_back_as_it_was(made: RunPaths, s3: S3, tmp_path: Path) -> None:
    pushed = push(made, URL, checkpoints="all")
    assert s3.written[-1].endswith("/manifest.json"), "readers find it when all is there"
    assert pushed.checkpoints == ["step-00000020", "step-00000010"]

    pulled = pull(HERE, Store(tmp_path / "there"))
    there = RunPaths(pulled.directory)
    assert (pulled.bytes, pulled.received_bytes) == (pushed.bytes, pushed.bytes)
    kept = ("metrics/rank-0.jsonl", "logs/rank-0.log", "view.json", "exit.json")
    for name in (*kept, "checkpoints/step-00000020/weights.bin"):
        assert (there.directory / name).read_bytes() == (made.directory / name).read_bytes()
        times = [(one.directory / name).stat().st_mtime_ns for one in (made, there)]
        assert times[0] == times[1]
    assert [verify(one) for one in list_checkpoints(there)] == ["", ""]
    assert not list(there.control.iterdir()), "requests to a supervisor stay where they were made"
    assert there.directory.stat().st_mode & 0o77 == 0


def test_a_web_server_is_enough_to_pull(made: RunPaths, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="pip install s3fs")
    pushed = push(made, str(tmp_path / "served"))
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "served"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        pulled = pull(f"http://127.0.0.1:{server.server_port}/gpt-2", Store(tmp_path / "there"))
        with pytest.raises(UsageError, match="no pushed run"):
            pull(f"http://127.0.0.1:{server.server_port}/gpt", Store(tmp_path / "there"))
        server.shutdown()
    assert (pulled.step, pulled.received_bytes) == (20, pushed.bytes)


def test_a_second_push_sends_what_is_new_alone(made: RunPaths, s3: S3) -> None:
    first = push(made, URL)
    assert push(made, URL).sent_bytes == 0
    append_line(made.rank_metrics(0), b'{"step":41,"time":1.0,"loss":2.0}')
    save(made, 30, size=1000)
    s3.faults()
    second = push(made, URL)
    assert second.checkpoints == ["step-00000030"]
    assert 2000 < second.sent_bytes < first.sent_bytes / 10
    sent = sum(size for method, path, size in s3.seen if method == "PUT" and "/pieces/" in path)
    assert sent < first.sent_bytes / 5, "with the signatures of its chunks"
    third = push(made, URL)
    remaining = Remote(HERE).sizes("pieces")
    assert sum(remaining.values()) == third.bytes, "what no push names any more is removed"


def test_the_users_keys_are_in_nothing_that_is_written(
    made: RunPaths, s3: S3, tmp_path: Path
) -> None:
    push(made, URL)
    pulled = pull(HERE, Store(tmp_path / "there"))
    here = Remote(HERE)
    contents = [here.read(f"pieces/{name}", 1 << 26) for name in here.sizes("pieces")]
    contents.append(here.read("manifest.json", 1 << 26))
    contents += [path.read_bytes() for path in pulled.directory.rglob("*") if path.is_file()]
    assert not [one for one in contents if SECRET.encode() in one]
    for url in (f"s3://AKIAIOSFODNN7EXAMPLE:{SECRET}@pods/runs", "https://host/runs?sig=abcdef"):
        with pytest.raises(UsageError, match="environment") as refused:
            push(made, url)
        assert SECRET not in str(refused.value)


@pytest.mark.parametrize("status", [500, 503])
def test_a_server_that_fails_for_a_while_is_asked_again(
    made: RunPaths, s3: S3, status: int
) -> None:
    s3.faults({"method": "PUT", "in": "/pieces/", "times": 3, "do": status})
    push(made, URL)
    assert read_remote_run(Remote(HERE)) is not None


def test_a_refusal_and_a_lasting_failure_are_told_and_leave_the_push_before(
    made: RunPaths, s3: S3
) -> None:
    push(made, URL)
    before = read_remote_run(Remote(HERE))
    save(made, 30, size=1000)
    s3.faults({"method": "PUT", "in": "/pieces/", "times": 1, "do": 403})
    with pytest.raises(StorageError, match=r"access is refused.*credentials in the environment"):
        push(made, URL)
    s3.faults({"method": "PUT", "in": "manifest.json", "times": 1000, "do": 500})
    with pytest.raises(StorageError, match=r"manifest\.json cannot be written"):
        push(made, URL)
    s3.faults()
    assert read_remote_run(Remote(HERE)) == before
    with pytest.raises(StorageError, match="Make the bucket"):
        push(made, "s3://nobodys-bucket/runs")


def test_a_server_that_does_not_answer_is_given_up(
    made: RunPaths, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(remote, "RETRY_SECONDS", ())
    s3.faults({"method": "PUT", "in": "/pieces/", "times": 1000, "do": "hang"})
    with pytest.raises(StorageError, match="cannot be written"):
        push(made, URL)


def test_a_push_that_is_killed_leaves_the_one_before_and_the_next_sends_the_rest(
    made: RunPaths, s3: S3, tmp_path: Path
) -> None:
    push(made, URL)
    here = Remote(HERE)
    pieces = set(here.sizes("pieces"))
    save(made, 30, size=3_000_000)
    s3.faults({"method": "PUT", "in": "/pieces/", "after": 1, "times": 1000, "do": "hang"})
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "workbench.cli", "push", "gpt-2", URL),
            *("--store", str(made.directory.parent)),
        ],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    until(lambda: here.sizes("pieces").keys() - pieces, 60, "a piece that has arrived")
    process.send_signal(signal.SIGKILL)
    process.wait()
    arrived = set(here.sizes("pieces"))
    s3.faults()
    assert pull(HERE, Store(tmp_path / "before")).step == 20
    again = push(made, URL)
    assert again.step == 30
    assert not [path for path in s3.written if path.rpartition("/")[2] in arrived - pieces]
    assert pull(HERE, Store(tmp_path / "after")).step == 30


def test_a_piece_that_was_cut_off_is_noticed_and_sent_again(
    made: RunPaths, s3: S3, tmp_path: Path
) -> None:
    push(made, URL)
    here = Remote(HERE)
    pushed = read_remote_run(here)
    assert pushed is not None
    ((name, size),) = pushed.files[-1].pieces
    here.write(f"pieces/{name}", here.read(f"pieces/{name}", size)[:-7])
    with pytest.raises(StorageError, match=f"has {size - 7:,} bytes instead of {size:,}"):
        pull(HERE, Store(tmp_path / "there"))
    assert Store(tmp_path / "there").ids() == [], "no run of which a part is missing"
    push(made, URL)
    assert pull(HERE, Store(tmp_path / "there")).received_bytes < 500_000, "the rest was kept"
    here.write(f"pieces/{name}", b"\0" * size)
    with pytest.raises(StorageError, match="SHA-256 differs"):
        pull(HERE, Store(tmp_path / "elsewhere"))


def test_a_damaged_checkpoint_is_left_out_for_the_one_before(
    made: RunPaths, tmp_path: Path
) -> None:
    with (made.checkpoints / "step-00000020" / "weights.bin").open("r+b") as file:
        file.write(b"damaged")
    pushed = push(made, str(tmp_path / "volume"))
    assert pushed.checkpoints == ["step-00000010"]
    assert "step-00000020 is left out: weights.bin" in pushed.notes[0]


def test_a_full_disk_is_one_sentence_and_the_next_pull_goes_on(
    made: RunPaths, tmp_path: Path
) -> None:
    save(made, 30, size=40 << 20)
    push(made, str(tmp_path / "volume"))
    with small_disk(tmp_path / "small") as mounted:
        if not mounted:
            pytest.skip("a file system cannot be mounted here")
        with pytest.raises(StoreError, match="has not so much room left"):
            pull(str(tmp_path / "volume" / "gpt-2"), Store(tmp_path / "small" / "runs"))


def test_a_pull_brings_nothing_of_an_earlier_push(made: RunPaths, tmp_path: Path) -> None:
    """One that was cut off had brought a state that is past, and a file where a folder is now."""
    url, partial = str(tmp_path / "volume"), tmp_path / "there" / ".pulling-gpt-2"
    (made.logs / "extra").write_text("said\n")
    push(made, url)
    shutil.copytree(made.directory, partial, ignore=shutil.ignore_patterns("step-00000010"))
    partial.chmod(0o700)
    made.exit.unlink()
    (made.logs / "extra").unlink()
    (made.logs / "extra").mkdir()
    (made.logs / "extra" / "more.log").write_text("said\n")
    shutil.rmtree(made.checkpoints / "step-00000020")
    shutil.rmtree(made.checkpoints / "step-00000010")
    save(made, 30)
    push(made, url)
    pulled = RunPaths(pull(f"{url}/gpt-2", Store(tmp_path / "there")).directory)
    assert not pulled.exit.exists()
    assert [path.name for path in pulled.checkpoints.glob("step-*")] == ["step-00000030"]
    assert (pulled.logs / "extra" / "more.log").read_text() == "said\n"


def test_another_run_of_that_name_and_a_later_state_are_not_written_over(
    made: RunPaths, tmp_path: Path
) -> None:
    volume = str(tmp_path / "volume")
    push(made, volume)
    pulled = RunPaths(pull(f"{volume}/gpt-2", Store(tmp_path / "there")).directory)
    append_line(pulled.attempts, b'{"attempt":2,"event":"start","first_step":20}')
    push(pulled, volume)
    with pytest.raises(StorageError, match="was resumed elsewhere"):
        push(made, volume)
    with pytest.raises(UsageError, match="an older copy"):
        pull(f"{volume}/gpt-2", Store(made.directory.parent))
    record = {"run": "gpt-2", "marker": "another"}
    write_json_atomic(made.run, record)
    with pytest.raises(StorageError, match="another run of that name"):
        push(made, volume)


def test_of_two_copies_that_were_resumed_the_later_push_is_refused(
    made: RunPaths, tmp_path: Path
) -> None:
    volume = str(tmp_path / "volume")
    push(made, volume)
    first, second = (
        RunPaths(pull(f"{volume}/gpt-2", Store(tmp_path / name)).directory) for name in "ab"
    )
    for copy, time, step in ((first, 5.0, 200), (second, 6.0, 150)):
        line = {"attempt": 2, "event": "start", "first_step": 20, "time": time}
        append_line(copy.attempts, json.dumps(line).encode())
        save(copy, step, size=1000)
    push(first, volume)
    for attempt in (2, 3):  # also where the one was started more often
        with pytest.raises(StorageError, match="did not go on from: the run was resumed elsewhere"):
            push(second, volume)
        with pytest.raises(UsageError, match="or one that was resumed here"):
            pull(f"{volume}/gpt-2", Store(tmp_path / "b"))
        line = {"attempt": attempt + 1, "event": "start", "first_step": 150, "time": 7.0}
        append_line(second.attempts, json.dumps(line).encode())
    line = {"attempt": 3, "event": "start", "first_step": 200, "time": 8.0}
    append_line(first.attempts, json.dumps(line).encode())
    assert push(first, volume).step == 200
    assert pull(f"{volume}/gpt-2", Store(tmp_path / "a")).received_bytes == 0


def test_a_run_that_is_deleted_while_it_is_sent_leaves_the_push_before(
    made: RunPaths, tmp_path: Path
) -> None:
    volume = str(tmp_path / "volume")
    push(made, volume)
    save(made, 30, size=1000)

    def delete(*_progress: object) -> None:
        if made.directory.exists():
            made.directory.rename(tmp_path / "deleted")

    with pytest.raises(StoreError, match="was removed while it was sent"):
        push(made, volume, on_progress=delete)
    assert pull(f"{volume}/gpt-2", Store(tmp_path / "there")).checkpoints == ["step-00000020"]


def test_a_copy_that_the_run_has_left_behind_is_not_taken_for_it(
    made: RunPaths, tmp_path: Path
) -> None:
    volume, there = str(tmp_path / "volume"), Store(tmp_path / "there")
    push(made, volume)
    pull(f"{volume}/gpt-2", there)
    assert pull(f"{volume}/gpt-2", there).step == 20  # the same: kept
    save(made, 30)
    push(made, volume)
    with pytest.raises(UsageError, match=f"an older copy.*delete gpt-2 --store {there.root}$"):
        pull(f"{volume}/gpt-2", there)


def test_names_that_differ_in_capitals_alone_make_no_push_unreadable(
    made: RunPaths, tmp_path: Path
) -> None:
    volume = str(tmp_path / "volume")
    for name in ("Model.log", "model.log", "back\\slash.log"):
        (made.logs / name).write_text("x")
    assert [note.split()[0] for note in push(made, volume).notes] == [
        "'logs/back\\\\slash.log'",
        "'logs/model.log'",
    ]
    push(made, volume)
    assert pull(f"{volume}/gpt-2", Store(tmp_path / "there")).step == 20


def test_a_file_that_grows_is_sent_from_the_piece_on_that_changed(
    made: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["workbench.storage.push"], "_PIECE_OF_LINES", 1000)
    volume = str(tmp_path / "volume")
    push(made, volume, checkpoints="none")
    append_line(made.rank_metrics(0), b'{"step":41,"time":1.0,"loss":2.0}')
    assert push(made, volume, checkpoints="none").sent_bytes <= 1000


def test_what_is_missing_is_named(made: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("aiohttp", reason="pip install s3fs")
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(StorageError, match=r"gs:// needs .*-m pip install gcsfs"):
        push(made, "gs://bucket/runs")
    with pytest.raises(UsageError, match="not an address"):
        push(made, "ftp://host/runs")
    with pytest.raises(UsageError, match="is read only"):
        push(made, "https://127.0.0.1:9/runs")


def test_a_checkpoint_that_lay_elsewhere_is_known_at_its_new_place(
    made: RunPaths, tmp_path: Path
) -> None:
    outside = tmp_path / "out" / "checkpoint-35"
    outside.mkdir(parents=True)
    (outside / "model.bin").write_bytes(b"weights")
    line = {"path": str(outside), "step": 35, "kind": "trainer", "time": 2e9, "world_size": 2}
    append_line(made.saved, json.dumps(line).encode())
    manifest = {"schema": 1, "step": 35, "saved_at": 2e9, "kind": "trainer"}
    manifest |= checkpoint_files.inventory(outside)
    made.manifests.mkdir()
    write_json_atomic(manifest_path(made, outside), manifest)
    pushed = push(made, str(tmp_path / "volume"), checkpoints="2")
    assert pushed.checkpoints == ["checkpoint-35", "step-00000020"]
    shutil.rmtree(tmp_path / "out")
    pulled = pull(f"{tmp_path}/volume/gpt-2", Store(tmp_path / "there"))
    newest = list_checkpoints(RunPaths(pulled.directory))[0]
    assert (newest.step, newest.kind, newest.sealed) == (35, "trainer", True)
    assert newest.path.is_relative_to(pulled.directory)
    assert verify(newest) == ""


def test_a_script_that_is_not_here_is_started_from_the_runs_own_copy(
    made: RunPaths, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    (work / "parts").mkdir(parents=True)
    files = {"train.py": b"import parts.model\n", "parts/model.py": b"layers = 2\n"}
    for name, data in files.items():
        (work / name).write_bytes(data)
    document = {
        **(read_json(made.run) or {}),
        "script": str(work / "train.py"),
        "working_directory": str(work),
        "command": [sys.executable, "-m", "launch", str(work / "train.py"), "--lr", "3e-4"],
        "provenance": {
            "files": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        },
    }
    write_json_atomic(made.run, document)
    push(made, str(tmp_path / "volume"))
    shutil.rmtree(work)
    pulled = pull(f"{tmp_path}/volume/gpt-2", Store(tmp_path / "there"))
    run = read_run(RunPaths(pulled.directory))
    assert run is not None
    script = pulled.directory / "code" / "train.py"
    assert (run.script, run.command[3]) == (str(script), str(script))
    assert (script.parent / "parts" / "model.py").read_bytes() == b"layers = 2\n"
    assert Path(run.working_directory).is_dir()
    assert any("own copy" in note for note in pulled.notes)

"""What a run was made from is recorded: quickly, bounded, without secrets, and nothing is started."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from workbench.provenance import git
from workbench.provenance.differences import differences
from workbench.provenance.files import MOST_BYTES, fingerprint, named_paths
from workbench.provenance.record import Provenance, installed_packages, record_provenance
from workbench.store.run_record import RunRecord
from workbench.store.secrets_in_settings import hide_in_file

KEY = "9f8A7c6B5d4e3F2a1b0c"


def ask_git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    done = subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)
    return done.stdout.decode().strip()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with a script, a module of its own and a file of settings, all committed."""
    folder = tmp_path / "project"
    (folder / "parts").mkdir(parents=True)
    (folder / "train.py").write_text("import json\nfrom parts.model import Model\n")
    (folder / "parts" / "__init__.py").write_text("")
    (folder / "parts" / "model.py").write_text("from . import layers\nimport torch\n")
    (folder / "parts" / "layers.py").write_text("WIDTH = 8\n")
    (folder / "small.yaml").write_text("lr: 0.1\n")
    ask_git(folder, "init", "-q")
    ask_git(folder, "add", "-A")
    ask_git(folder, "commit", "-qm", "one")
    return folder


def recorded(
    project: Path, *arguments: str, keep: Path | None = None, ours: bool = False
) -> Provenance:
    return record_provenance(
        project / "train.py", arguments, project, {"NCCL_ALGO": "Ring"}, ours=ours, keep=keep
    )


def test_a_clean_repository_is_its_commit(project: Path, tmp_path: Path) -> None:
    found = recorded(project, "--config", "small.yaml", keep=tmp_path / "source")
    assert found.commit == ask_git(project, "rev-parse", "HEAD")[:20]
    assert found.repository == str(project)
    assert (found.changes_sha256, found.copied, found.notes) == (None, (), ())
    own = {"train.py", "parts/__init__.py", "parts/model.py", "parts/layers.py", "small.yaml"}
    assert set(found.files) == own
    assert not (tmp_path / "source").exists()
    assert found.packages["pytest"] == pytest.__version__
    assert found.environment == {"NCCL_ALGO": "Ring"}
    assert [(one.option, one.bytes) for one in found.data] == [("--config", 8)]


def test_changes_are_kept_so_that_git_applies_them(project: Path, tmp_path: Path) -> None:
    (project / "parts" / "layers.py").write_text("WIDTH = 16\n")
    (project / "new.py").write_text("import later\n")
    (project / "train.py").write_text("import new\n")
    found = recorded(project, keep=tmp_path / "source")
    assert found.copied == ("new.py",)
    assert (tmp_path / "source" / "new.py").read_text() == "import later\n"
    ask_git(
        project, "worktree", "add", "-q", "--detach", str(tmp_path / "again"), found.commit or ""
    )
    ask_git(tmp_path / "again", "apply", str(tmp_path / "source" / "changes.diff"))
    assert (tmp_path / "again" / "parts" / "layers.py").read_text() == "WIDTH = 16\n"
    assert (tmp_path / "again" / "train.py").read_text() == "import new\n"


def test_without_a_repository_the_scripts_own_files_are_copied(tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "train.py").write_text("import model\n")
    (folder / "model.py").write_text(f'wandb_api_key = "{KEY}"\nhidden_size = "many-words-here"\n')
    (folder / "unused.py").write_text("")
    found = record_provenance(folder / "train.py", (), folder, {}, ours=False, keep=tmp_path / "k")
    assert (found.commit, set(found.copied)) == (None, {"train.py", "model.py"})
    kept = (tmp_path / "k" / "model.py").read_text()
    assert KEY not in kept
    assert "many-words-here" in kept
    assert found.notes == ("Secrets are hidden in source/model.py.",)


def test_secrets_are_not_in_the_kept_changes(project: Path, tmp_path: Path) -> None:
    (project / "train.py").write_text(f'HF_TOKEN = "hf_{"a1B2" * 8}"\npassword = "two words"\n')
    recorded(project, keep=tmp_path / "source")
    text = (tmp_path / "source" / "changes.diff").read_text()
    assert "hf_a1B2" not in text
    assert "two words" not in text
    assert text.count("[redacted]") == 2


SETTINGS = {
    "a.yaml": f"lr: 0.1\nwandb_api_key: {KEY}  # mine\nwith: {{user: me, password: hunter2}}\n",
    "b.yaml": f"password: |\n  {KEY}\n  hunter2\nenv:\n- name: PG_PASSWORD\n  value: hunter2\n",
    "c.ini": f"[db]\npassword = hunter2 and hunter2\napi_key={KEY}\n",
    "d.toml": f'hub_token = "{KEY}" # it\'s mine\npassword = """\nhunter2\n"""\nlr = 0.1\n',
    "e.json": '{"auth": {\n  "password": "it\'s hunter2",\n  "lr": 0.1\n}}\n',
    ".env": f"export HF_TOKEN={KEY}\nDB_PASSWORD=hunter2\n",
    "start.sh": f"LR=1 WANDB_API_KEY={KEY} python train.py --hub-token {KEY}\n",
    "notes.md": f"Set `WANDB_API_KEY={KEY}` first; a token is a word.\n",
    "kernel.cu": f'token = lexer.next2();\nauto password = "{KEY}";\n',
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_secret_of_settings_needs_no_quotes_to_be_hidden(
    project: Path, tmp_path: Path, name: str
) -> None:
    (project / name).write_text(SETTINGS[name])
    ask_git(project, "add", name)
    given = (f"--config={name}",) if name[1:] in {".yaml", ".ini", ".toml", ".json"} else ()
    found = recorded(project, *given, keep=tmp_path / "source")
    text = (tmp_path / "source" / "changes.diff").read_text()
    assert "+" in text
    assert KEY not in text
    assert "hunter2" not in text
    assert "[redacted]" in text
    assert found.notes == ("Secrets are hidden in source/changes.diff.",)
    assert hide_in_file(name, SETTINGS[name].encode()).decode().splitlines() == [
        line[1:] for line in text.splitlines() if re.match(r"\+(?!\+\+)", line)
    ]


def test_settings_without_a_secret_are_kept_as_they_are() -> None:
    text = (
        "lr: 1e-3\ntokenizer: auto\npad_token: <pad>\ntoken_types: 2\nkey: image\nmax_tokens: 4096\n"
        "hub_token: ${HF_TOKEN}\npassword: {{ password }}\nuse_auth_token: true\nseed: 1  # token\n"
        "auth:\n  user: me\nemb: [token, position]\nrevision: 0123456789abcdef\n"
    )
    assert hide_in_file("config.yaml", text.encode()).decode() == text
    assert yaml.safe_load(hide_in_file("a.yaml", b"a: 1\napi_key: 'x''y'\nb: 2\n")) == {
        "a": 1,
        "api_key": "[redacted]",
        "b": 2,
    }


def test_the_head_of_a_hunk_repeats_a_line_of_the_file(project: Path, tmp_path: Path) -> None:
    lines = ["password: hunter2", *(f"  a{n}: {n}" for n in range(9))]
    (project / "small.yaml").write_text("\n".join(lines))
    ask_git(project, "commit", "-qam", "two")
    (project / "small.yaml").write_text("\n".join(lines).replace("a8: 8", "a8: 9"))
    recorded(project, keep=tmp_path / "source")
    assert "hunter2" not in (tmp_path / "source" / "changes.diff").read_text()


@pytest.mark.parametrize("setting", ["fsmonitor", "hook", "filter", "external", "textconv"])
def test_a_repository_starts_nothing(project: Path, tmp_path: Path, setting: str) -> None:
    mark, program = tmp_path / "started", tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {mark}\ncat\n")
    program.chmod(0o700)
    (project / ".gitattributes").write_text("*.py filter=f diff=d\n")
    names = {
        "fsmonitor": "core.fsmonitor",
        "filter": "filter.f.clean",
        "external": "diff.d.command",
        "textconv": "diff.d.textconv",
    }
    if setting == "hook":
        for hook in ("post-index-change", "fsmonitor-watchman"):
            (project / ".git" / "hooks" / hook).write_text(program.read_text())
            (project / ".git" / "hooks" / hook).chmod(0o700)
    else:
        ask_git(project, "config", names[setting], str(program))
    (project / "train.py").write_text("import os\n")
    os.utime(project / "parts" / "layers.py", (1, 1))  # git has to look into it
    found = recorded(project)
    assert found.changes_sha256 is not None
    assert not mark.exists()
    ask_git(project, "diff", "HEAD")
    assert mark.exists() or setting == "hook"  # the trap works: an unguarded git starts it


def test_a_repository_that_is_too_large_is_bounded(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git, "MOST_DIFF_BYTES", 1000)
    (project / "parts" / "layers.py").write_text("# one line of many\n" * 1000)
    found = recorded(project, keep=tmp_path / "source")
    assert found.commit is not None
    assert found.changes_sha256 is None
    assert "larger than" in found.notes[0]
    assert "train.py" in found.copied  # in place of the changes
    assert not (tmp_path / "source" / "changes.diff").exists()


def test_a_slow_git_costs_a_launch_its_time_limit_alone(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o700)
    monkeypatch.setenv("PATH", str(slow.parent), prepend=os.pathsep)
    before = time.monotonic()
    found = recorded(project, keep=tmp_path / "source")
    assert time.monotonic() - before < 60
    assert found.commit is None
    assert "train.py" in found.copied


def test_what_cannot_be_read_is_a_note(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no such luck")

    monkeypatch.setattr("workbench.provenance.record.checkout", fail)
    assert "no such luck" in recorded(project).notes[0]


def test_a_recipe_is_known_by_its_version(project: Path) -> None:
    found = recorded(project, ours=True)
    assert (found.files, found.copied) == ({}, ())
    assert found.commit is not None


def test_a_huge_file_of_settings_is_not_copied(project: Path) -> None:
    (project / "huge.json").write_text(" " * (MOST_BYTES + 1))
    found = recorded(project, "--config=huge.json")
    assert "huge.json" not in found.files
    assert [one.bytes for one in found.data] == [MOST_BYTES + 1]


def test_data_is_told_apart_by_its_ends_and_a_folder_by_its_names(tmp_path: Path) -> None:
    late = time.monotonic() + 60
    file, folder = tmp_path / "tokens.bin", tmp_path / "shards"
    file.write_bytes(b"a" * 5000)
    folder.mkdir()
    (folder / "0.bin").write_bytes(b"x")
    before = [fingerprint(one, late) for one in (file, folder)]
    assert before == [fingerprint(one, late) for one in (file, folder)]
    file.write_bytes(b"a" * 4999 + b"b")
    (folder / "1.bin").write_bytes(b"")
    after = [fingerprint(one, late) for one in (file, folder)]
    assert [one[0] for one in after] == [one[0] for one in before] == [5000, 1]
    assert all(new[1] != old[1] for new, old in zip(after, before, strict=True))
    with pytest.raises(TimeoutError):
        fingerprint(folder, time.monotonic() - 1)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a plain file"):
        fingerprint(tmp_path / "pipe", late)


def test_arguments_that_name_files_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    words = ["--data", "a.txt", "--lr", "0.1", "--again=a.txt", "b.txt", "x\0y"]
    found = [(option, path.name) for option, path in named_paths(words, tmp_path)]
    assert found == [("--data", "a.txt"), ("--again", "a.txt")]


def test_packages_are_those_that_python_finds() -> None:
    from importlib.metadata import distributions

    names = {
        one.metadata["Name"].lower().replace("_", "-").replace(".", "-"): one.version
        for one in distributions()
    }
    assert {name: found for name, found in installed_packages().items() if names.get(name) == found}
    assert set(installed_packages()) == set(names)


def test_differences_are_what_is_no_longer_the_same() -> None:
    then = Provenance(commit="1" * 20, python="3.11.1", packages={"torch": "2.12", "numpy": "2.0"})
    now = Provenance(commit="1" * 20, python="3.11.1", packages={"torch": "2.13", "numpy": "2.0"})
    host = {"name": "a", "gpus": [{"name": "H100"}] * 2, "cpu_name": "x"}
    before = RunRecord(cluster=host, provenance=then.document())
    after = RunRecord(cluster={**host, "name": "b", "gpus": []}, provenance=now.document())
    assert differences(before, after) == [
        {"what": "GPUs", "was": "2 x H100", "now": None},
        {"what": "host", "was": "a", "now": "b"},
        {"what": "package torch", "was": "2.12", "now": "2.13"},
    ]
    assert differences(before, before) == []
    assert differences(RunRecord(cluster=host), before) == [
        {"what": "provenance", "was": None, "now": "recorded"}
    ]


def test_several_files_of_one_option_are_told_apart() -> None:
    def of(digest: str) -> RunRecord:
        parts = [
            {"option": "--train", "path": name, "bytes": 1, "sha256": sha}
            for name, sha in (("a.jsonl", digest), ("b.jsonl", "2" * 64))
        ]
        return RunRecord(provenance={"data": parts})

    assert differences(of("1" * 64), of("1" * 64)) == []
    (changed,) = differences(of("1" * 64), of("3" * 64))
    assert changed["what"] == "data --train"


def test_a_script_of_a_package_has_the_modules_of_its_package(tmp_path: Path) -> None:
    package = tmp_path / "m" / "pkg"
    (package / "steps").mkdir(parents=True)
    for name in ("__init__.py", "model.py", "data.py", "steps/__init__.py", "steps/one.py"):
        (package / name).write_text("")
    (package / "train.py").write_text("from pkg.model import Net\nimport pkg.data, pkg.steps.one\n")
    found = record_provenance(package / "train.py", (), tmp_path / "m", {}, ours=False)
    own = {"__init__.py", "train.py", "model.py", "data.py", "steps/__init__.py", "steps/one.py"}
    assert set(found.files) == own


def test_files_of_one_name_are_each_recorded(project: Path, tmp_path: Path) -> None:
    given = list[str]()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(f'"{name}"')
        given += [f"--{name}", str(tmp_path / name / "config.json")]
    found = recorded(project, *given, keep=tmp_path / "source")
    assert found.copied == ("config.json", "2/config.json")
    assert (tmp_path / "source" / "2" / "config.json").read_text() == '"b"'
    (tmp_path / "a" / "config.json").write_text('"c"')
    changed = recorded(project, *given).files
    assert [name for name in changed if changed[name] != found.files[name]] == ["config.json"]


def test_a_file_outside_of_the_repository_makes_no_other_one_unknown(
    project: Path, tmp_path: Path
) -> None:
    (tmp_path / "other.yaml").write_text("lr: 1\n")
    given = ("--config", str(tmp_path / "other.yaml"))
    assert recorded(project, *given, keep=tmp_path / "source").copied == ("other.yaml",)

"""Plain commands for several machines: what is printed, and what cannot be."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from string import Template

import pytest
import yaml
from typer.testing import CliRunner

import workbench as wb
from workbench.cli import nodes
from workbench.cli.commands import load
from workbench.cli.entry import app
from workbench.describe import Strategy, detection
from workbench.engines import slurm, slurm_watch
from workbench.engines.commands import plain_commands
from workbench.engines.job import EngineJob, slug
from workbench.errors import HostError, UsageError
from workbench.launching.prepare.placement import Placement, interface_towards, own_address
from workbench.launching.prepare.request import Request


def job(strategy: str = "fsdp", **options: object) -> EngineJob:
    """Two nodes with two GPUs each."""
    known: dict[str, object] = {
        "name": "a run",
        "script": "gpt",
        "arguments": ("--steps", "5", "--note", "it's"),
        "strategy": Strategy.parse(strategy, 4),
        "nodes": 2,
        "processes_per_node": 2,
        "gpu": "h100-sxm",
    }
    return EngineJob(**{**known, **options})  # type: ignore[arg-type]


def words_of(text: str) -> list[str]:
    """The command at the end of a shell text."""
    return shlex.split(text.splitlines()[-1])


def test_each_node_gets_its_own_rank_and_all_the_same_address() -> None:
    texts = plain_commands(job(), "10.0.0.1", 29_600)
    for rank, text in enumerate(texts):
        words = words_of(text)
        for flag, value in {
            "--num_machines": "2",
            "--machine_rank": str(rank),
            "--main_process_ip": "10.0.0.1",
            "--main_process_port": "29600",
        }.items():
            assert words[words.index(flag) + 1] == value
        assert words[-1] == "it's"
    assert texts[0].replace("--machine_rank 0", "--machine_rank 1") == texts[1]


@pytest.mark.parametrize("node", ["0", "1"])
def test_every_machine_of_a_slurm_job_joins_by_a_line_that_the_command_takes(
    tmp_path: Path, node: str
) -> None:
    script = slurm.sbatch_text(job(), run_directory=tmp_path)
    (line,) = re.findall(r"-m workbench\.cli (node .*); \}", script)
    values = {"SLURM_NODEID": node, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29600"}
    words = [Template(word).substitute(values) for word in shlex.split(line)]
    refusal = CliRunner().invoke(app, words).exception
    assert f"{tmp_path}/run.json cannot be read" in str(refusal)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "zero2", "zero3", "hsdp"])
def test_the_config_file_says_how_many_machines_and_ranks(strategy: str) -> None:
    text = plain_commands(job(strategy), "10.0.0.1")[0]
    written = re.search(r"accelerate\.yaml\S* <<'END'\n(.*?)\nEND\n", text, re.DOTALL)
    assert written
    config = yaml.safe_load(written[1])
    assert (config["num_machines"], config["num_processes"]) == (2, 4)
    launcher = config.get("deepspeed_config", {}).get("deepspeed_multinode_launcher")
    assert launcher == ("standard" if strategy.startswith("zero") else None)


def test_no_machine_reads_the_files_that_another_one_is_writing(tmp_path: Path) -> None:
    """Of a Slurm job all write them into the folder that they share."""
    text = plain_commands(job(), "10.0.0.1")[0]
    writes = text.partition("\nexport ")[0]
    assert "accelerate.yaml" in writes
    loop = f"for _ in $(seq 40); do\n{writes}\ndone"
    subprocess.run(["bash", "-ec", writes], cwd=tmp_path, check=True)
    config = tmp_path / "workbench-config" / "accelerate.yaml"
    whole = config.read_text()
    writers = [subprocess.Popen(["bash", "-ec", loop], cwd=tmp_path) for _ in range(2)]
    read: set[str] = set()
    while any(writer.poll() is None for writer in writers):
        read.add(config.read_text())
    assert [writer.returncode for writer in writers] == [0, 0]
    assert read == {whole}
    assert [path.name for path in config.parent.iterdir()] == [config.name]


def test_torchrun_starts_what_needs_nothing_of_accelerate() -> None:
    words = words_of(plain_commands(job("ddp"), "10.0.0.1", launcher="torchrun")[1])
    assert words[words.index("--node-rank") + 1] == "1"
    assert words[words.index("--nproc-per-node") + 1] == "2"
    with pytest.raises(UsageError, match="which torchrun does not read"):
        plain_commands(job("fsdp"), "10.0.0.1", launcher="torchrun")


def test_one_machine_needs_no_address() -> None:
    words = words_of(plain_commands(job(nodes=1, processes_per_node=4), "127.0.0.1")[0])
    assert "--main_process_ip" not in words


def test_a_placement_replaces_the_one_before() -> None:
    first = Placement(nodes=2, node_rank=0, address="a", port=1)
    second = Placement(nodes=2, node_rank=1, address="b", port=2)
    start = ["python", "--main_process_port", "0", "train.py", "--x"]
    assert second.of(first.of(start)) == second.of(start)


def test_a_scripts_options_of_the_launchers_names_stay_its_own() -> None:
    own = ["--num_machines", "7", "--machine_rank", "3", "--main_process_ip", "db", "@PORT@"]
    request = wb.request("gpt", cpu=True, processes=4, nodes=2, address="127.0.0.1")
    assert replace(request, arguments=tuple(own)).command[-len(own) :] == own
    text = plain_commands(job(arguments=tuple(own)), "10.0.0.1")[1]
    assert words_of(text)[-len(own) :] == own
    assert words_of(text)[words_of(text).index("--machine_rank") + 1] == "1"


def test_exported_arguments_reach_a_script_as_they_were_given() -> None:
    """torch's launcher reads string.Template's dollar signs, as for its own ${local_rank}."""
    own = ("$$x^2$$", "$HOME", "${local_rank}", "$$$")
    for launcher in ("accelerate", "torchrun"):
        text = plain_commands(job("ddp", arguments=own), "10.0.0.1", launcher=launcher)[0]
        read = [Template(word).safe_substitute(local_rank="1") for word in words_of(text)]
        assert read[-4:] == list(own)


def test_the_loopback_leads_to_itself() -> None:
    assert own_address("127.0.0.1") == "127.0.0.1"
    assert interface_towards("127.0.0.1") == "lo"


def test_a_batch_script_says_what_was_asked() -> None:
    text = slurm.sbatch_text(job(max_hours=1.5, restarts=2), partition="gpu", grace_seconds=60)
    lines = {line.removeprefix("#SBATCH --") for line in text.splitlines() if "#SBATCH" in line}
    assert lines == {
        "job-name=a-run",
        "nodes=2",
        "ntasks-per-node=1",
        "cpus-per-task=8",
        "gpus-per-node=h100:2",
        "time=01:30:00",
        "partition=gpu",
        "output=%x-%j.out",
        "open-mode=append",
        "signal=B:USR1@60",
        "requeue",
    }


def submitted(*options: str) -> Request:
    """What ``workbench submit`` would hand to Slurm."""
    requests: list[Request] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nodes, "_show_script", lambda checked, *_, **__: requests.append(checked))
        command = load("submit")
        command.main(["gpt", "--cpu", "--dry-run", *options], standalone_mode=False)
    return requests[0]


def test_submit_takes_every_option_of_a_launch(tmp_path: Path) -> None:
    where = ("--nodes", "2", "--nproc", "2", "--store", str(tmp_path))
    chosen = ("--strategy", "fsdp", "--recompute", "full", "--tracker", "tensorboard")
    request = submitted(*where, *chosen, "--restarts", "2", "--grace", "40", "--env", "A=1")
    assert (request.nodes, request.processes_here, request.strategy.recompute) == (2, 2, "full")
    assert request.options.trackers == ("tensorboard",)
    assert (request.options.recovery.restarts, request.options.recovery.grace) == (2, 40)
    assert request.options.environment == {"A": "1"}
    assert submitted(*where).options.recovery.grace == slurm.GRACE_SECONDS


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--to", "pbs"), "no files for pbs either.* --to torchrun"),
        (("--to", "skypilot"), "Write the files for skypilot: .* --to skypilot"),
        (("--address", "10.0.0.1"), "Slurm chooses the machines"),
    ],
)
def test_submit_names_what_starts_elsewhere(options: tuple[str, ...], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        submitted(*options)


@pytest.mark.parametrize(
    ("there", "given", "words"),
    [
        ("gpu:h100:8\n", (), "Slurm's nodes have GPUs \\(h100\\)"),
        ("gpu:8\n", (), "of no named type"),
        ("gpu:h100:8\n", ("--cpu",), ""),
        ("gpu:h100:8\n", ("--gpu", "h100-sxm"), ""),
        ("(null)\n", (), ""),
        (None, (), "warning: This machine has no GPU"),
    ],
)
def test_a_login_node_without_gpus_submits_no_job_on_cores_unasked(
    there: str | None,
    given: tuple[str, ...],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = list[tuple[str, ...]]()

    def run_slurm(*line: str, **_more: object) -> subprocess.CompletedProcess[str]:
        asked.append(line)
        if there is None:
            raise HostError("sinfo is not installed on this machine.")
        return subprocess.CompletedProcess(line, 0, there, "")

    monkeypatch.setattr(slurm_watch, "run_slurm", run_slurm)
    where = ("--store", str(tmp_path), "--nproc", "2", "--partition", "night", "--dry-run")
    done = CliRunner().invoke(app, ["submit", "gpt", *where, *given])
    refused = str(done.exception) if done.exception else ""
    assert re.search(words, refused + done.stderr)
    assert bool(refused) == (there is not None and bool(words)), done.output
    assert ("#SBATCH" in done.stdout) != bool(refused)
    if not given:
        assert "--partition=night" in asked[0]


def test_ranks_of_a_slurm_job_share_the_cores_that_it_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not those of the machine on which it was submitted."""

    def run_slurm(*line: str, **_more: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(line, 0, "12\n", "")

    monkeypatch.setattr(slurm_watch, "run_slurm", run_slurm)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(detection, "usable_cores", lambda: 64)
    for cpus, threads in ((None, "1"), ("6", "6")):
        given = [] if cpus is None else ["--cpus", cpus]
        where = ("--store", str(tmp_path), "--nproc", "2", "--cpu", "--json")
        done = CliRunner().invoke(app, ["submit", "gpt", *where, *given])
        command = json.loads(done.stdout)["command"]
        assert command[command.index("--num_cpu_threads_per_process") + 1] == threads


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--cpus", "0"), "cpus_per_rank must be at least 1, not 0"),
        (("--hours", "nan"), "hours must be above 0, not nan"),
        (("--requeues", "-1"), "requeues must be at least 0, not -1"),
    ],
)
def test_impossible_numbers_are_no_default(option: tuple[str, ...], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        submitted(*option)


def test_the_front_door_exports_what_it_launches() -> None:
    made = wb.export("gpt", "slurm", nodes=2, processes_per_node=4, gpu="h100", strategy="fsdp")
    (text,) = (body for name, body in made.files.items() if name.endswith(".sbatch"))
    assert "#SBATCH --nodes=2" in text


def test_a_notice_reaches_a_run_whose_path_has_spaces(tmp_path: Path) -> None:
    folder = tmp_path / "My Runs" / 'it\'s "one" 100%j'
    (folder / "control").mkdir(parents=True)
    text = slurm.sbatch_text(job(), run_directory=folder, cpus_per_rank=3)
    output = f'{tmp_path}/My Runs/it\\\'s \\"one\\" 100%%j/logs/slurm.log'
    assert f'#SBATCH --output="{output}"' in text
    assert "#SBATCH --cpus-per-task=6" in text
    assert "export SRUN_CPUS_PER_TASK=6" in text
    (trap,) = [line for line in text.splitlines() if line.startswith("trap ")]
    subprocess.run(["bash", "-ec", f'{trap}\nkill -USR1 $$\n[ -n "$noticed" ]'], check=True)
    assert (folder / "control" / "preempt").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"image": "docker:x"}, "not start containers"),
        ({"checkpoint_uri": "s3://bucket"}, "not mount buckets"),
        ({"provider": "aws"}, "have a fixed location"),
        ({"max_usd_per_hour": 3.0}, "not know prices"),
        ({"max_hours": 0.01}, "less than one"),
    ],
)
def test_slurm_is_not_asked_for_what_it_does_not_do(options: dict[str, object], words: str) -> None:
    asked = job(**options)
    assert any(words in one for one in slurm.check(asked))
    with pytest.raises(UsageError, match=words):
        slurm.sbatch_text(asked)


def test_what_scontrol_says_is_read() -> None:
    text = (
        "JobId=12 JobName=my job=1 UserId=u(1) JobState=RUNNING Reason=None Restarts=0 "
        "ExitCode=0:0 NodeList=n[1-2] BatchHost=n1"
    )
    read = slurm_watch.parse(text)
    assert (read.job_id, read.state, read.reason, read.nodes) == ("12", "RUNNING", None, "n[1-2]")
    assert read.at_work
    assert not read.waiting


def test_a_name_keeps_its_letters_where_engines_allow_ascii_alone() -> None:
    names = ("Läuft lang", "a run", "√2", "模型")
    digits = "-[0-9a-f]+"  # of what the letters no longer tell
    for name, kept in zip(
        names, (f"lauft-lang{digits}", "a-run", "job-2", f"job{digits}"), strict=True
    ):
        assert re.fullmatch(kept, slug(job(name=name))), name
